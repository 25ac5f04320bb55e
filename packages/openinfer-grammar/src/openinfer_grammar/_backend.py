"""What a grammar backend is: compile, fill mask, accept, roll back."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from openinfer_contract import Grammar

MaskRows = npt.NDArray[np.uint32]
"""[num_rows, num_words]: a bit per id, least significant first, set where the id is allowed."""


def num_mask_words(vocab_size: int) -> int:
    """32-bit words of one mask row."""
    return -(-vocab_size // 32)


class Accepted(NamedTuple):
    """What `Matcher.accept` came to."""

    num_tokens: int
    """How many ids were taken; fewer than given: the next one is not allowed."""
    forced: tuple[int, ...]
    """Ids that can only come next, in order; empty where there is a choice, or the backend does
    not know."""


class Matcher(Protocol):
    """One output being held to one grammar. One thread at a time."""

    def fill_mask(self, rows: MaskRows, drafts: Sequence[int] = (), /) -> int:
        """Writes which ids may come next: row 0 now, row i after the first i of `drafts`.

        The matcher stays where it is. An id that ends the output is allowed where the grammar is
        complete, and nothing else once nothing can follow.

        Args:
            rows: at least 1 + len(drafts) rows, C-contiguous; overwritten.
            drafts: ids that may come to be sampled, in order.

        Returns:
            How many rows were written: those behind a draft that is not allowed are left alone.

        Raises:
            GrammarFailed: the grammar has run into a limit here.
        """

    def accept(self, token_ids: Sequence[int], /) -> Accepted:
        """Goes on by these ids, up to the first that is not allowed.

        Raises:
            GrammarFailed: the grammar has run into a limit here.
        """

    def rollback(self, num_tokens: int, /) -> None:
        """Takes back the ids accepted last.

        Raises:
            ValueError: fewer were accepted.
        """


class GrammarBackend(Protocol):
    """Grammars over one vocabulary.

    Attributes:
        name: what `--structured-outputs-backend` calls it.
        vocab_size: ids of a mask row.
    """

    @property
    def name(self) -> str: ...

    @property
    def vocab_size(self) -> int: ...

    def compile(self, grammar: Grammar, /) -> Matcher:
        """A matcher at the start of `grammar`, whose `start_after` is not looked at. Any thread.

        Takes from a fraction of a millisecond to seconds, nearly all of it in native code that
        leaves other threads alone.

        Raises:
            GrammarRefused: it cannot be honoured exactly, naming the keyword at fault.
        """
