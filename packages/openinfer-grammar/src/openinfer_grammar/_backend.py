"""The interface of a grammar backend: compile, fill mask, accept, roll back."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from openinfer_contract import Grammar

MaskRows = npt.NDArray[np.uint32]
"""[num_rows, num_words]: one bit per id, least significant first, set if the id is allowed."""


def num_mask_words(vocab_size: int) -> int:
    """Returns the number of 32-bit words of one mask row."""
    return -(-vocab_size // 32)


class Accepted(NamedTuple):
    """Result of `Matcher.accept`."""

    num_tokens: int
    """Number of accepted ids. If it is less than the number given, the next id is not allowed."""
    forced: tuple[int, ...]
    """Forced ids: the only ids that can come next, in order. Empty if the grammar leaves a choice,
    or if the backend does not compute forced ids."""


class Matcher(Protocol):
    """The position of one output in one grammar; one thread at a time."""

    def fill_mask(self, rows: MaskRows, drafts: Sequence[int] = (), /) -> int:
        """Writes the allowed next ids: row 0 at this position, row i after the first i of `drafts`.

        The matcher does not move. An id that ends the output is allowed where the grammar is
        complete; where nothing else can follow, it is the only allowed id.

        Args:
            rows: at least 1 + len(drafts) rows, C-contiguous; overwritten.
            drafts: speculative ids, in order.

        Returns:
            Number of rows written. Rows after a draft that is not allowed are not changed.

        Raises:
            GrammarFailed: the grammar reached a limit of the library.
        """

    def accept(self, token_ids: Sequence[int], /) -> Accepted:
        """Advances by these ids, up to the first one that is not allowed.

        Raises:
            GrammarFailed: the grammar reached a limit of the library.
        """

    def rollback(self, num_tokens: int, /) -> None:
        """Rolls back the last accepted ids.

        Raises:
            ValueError: fewer ids were accepted.
        """


class GrammarBackend(Protocol):
    """Compiler of grammars over one vocabulary.

    Attributes:
        name: its name for `--structured-outputs-backend`.
        vocab_size: number of ids of a mask row.
    """

    @property
    def name(self) -> str: ...

    @property
    def vocab_size(self) -> int: ...

    def compile(self, grammar: Grammar, /) -> Matcher:
        """Returns a matcher at the start of `grammar`, ignoring its `start_after`. Any thread.

        A call takes a fraction of a millisecond to seconds, nearly all of it in native code without
        the GIL.

        Raises:
            GrammarRefused: the grammar cannot be honoured exactly; names the keyword at fault.
        """
