"""`Constraint`: one output under a grammar, from the end of its reasoning, with forced ids."""

import time
from collections.abc import Sequence

import numpy as np

from openinfer_contract import Grammar, unpack_ids
from openinfer_grammar._backend import MaskRows, Matcher
from openinfer_grammar.errors import GrammarFailed

_BITS = 32


class Constraint:
    r"""The grammar of one request; one thread at a time.

        waiting --start_after was generated--> active
        undecided --may_open_with--> waiting
                  \--any other id--> active

    A constraint without `start_after` is active at once, one with `may_open_with` is undecided, and
    any other one is waiting. While it waits, it masks nothing.

    If the grammar leaves no choice, the next tokens are `forced`, and the mask allows only the
    first of them. They depend only on the tokens before them. The output is therefore the same
    whether forced tokens are sampled one by one, given at once, or replayed.

    Args:
        matcher: a matcher at its start, owned by the constraint.
        grammar: the grammar that the matcher was compiled from.
    """

    def __init__(self, matcher: Matcher, grammar: Grammar) -> None:
        self._matcher = matcher
        self._start_after = list(unpack_ids(grammar.start_after))
        self._openers = frozenset(unpack_ids(grammar.may_open_with))
        self._recent: list[int] = []
        self._is_undecided = bool(self._start_after and self._openers)
        self._is_waiting = bool(self._start_after) and not self._is_undecided
        self._fill_seconds = 0.0
        self._forced: list[int] = []
        self._unreported: list[int] = []
        """Forced ids that were generated but not yet passed to the matcher. The matcher gets all of
        them in one call, after the last one was generated."""
        if not self._start_after:
            self._forced = list(matcher.accept(()).forced)

    @property
    def is_masking(self) -> bool:
        """Whether the next token needs a mask."""
        return not self._is_waiting

    @property
    def forced(self) -> Sequence[int]:
        """The only ids that can come next, in order; empty if there is a choice."""
        return self._forced

    @property
    def fill_seconds(self) -> float:
        """CPU seconds of the last `fill_mask`, 0 before the first."""
        return self._fill_seconds

    def fill_mask(self, row: MaskRows, /) -> None:
        """Writes the ids that may come next into a row [num_words]; only while `is_masking`.

        Raises:
            GrammarFailed: the grammar reached a limit of the library.
        """
        assert not self._is_waiting, "nothing is masked yet"
        begin = time.thread_time()
        try:
            self._fill(row)
        finally:
            self._fill_seconds = time.thread_time() - begin

    def _fill(self, row: MaskRows) -> None:
        if self._forced:
            row[:] = 0
            _allow(row, self._forced[0])
            return
        self._matcher.fill_mask(row[None])
        if self._is_undecided:
            for token_id in self._openers:
                _allow(row, token_id)

    def accept(self, token_ids: Sequence[int]) -> None:
        """Advances by ids that were generated.

        Raises:
            GrammarFailed: an id is not allowed, or the grammar reached a limit of the library.
        """
        begin = 0
        while begin < len(token_ids):
            begin += self._accept_some(token_ids, begin)

    def _accept_some(self, token_ids: Sequence[int], begin: int) -> int:
        """Advances by leading ids from `begin` on; returns how many it consumed."""
        first = token_ids[begin]
        if self._is_undecided:
            self._is_undecided = False
            self._is_waiting = first in self._openers
            if self._is_waiting:
                return 1
        if self._is_waiting:
            self._match_start(first)
            return 1
        if not self._forced:
            self._forced = self._advance([first])
            return 1
        ids = token_ids[begin : begin + len(self._forced)]
        for token_id, forced in zip(ids, self._forced, strict=False):
            if token_id != forced:
                raise GrammarFailed(f"the grammar does not allow token {token_id} here")
        self._unreported += ids
        self._forced = self._forced[len(ids) :]
        if not self._forced:
            unreported, self._unreported = self._unreported, []
            self._forced = self._advance(unreported)
        return len(ids)

    def _advance(self, token_ids: list[int]) -> list[int]:
        """Advances the matcher; returns the ids that are forced after these."""
        accepted = self._matcher.accept(token_ids)
        if accepted.num_tokens < len(token_ids):
            bad = token_ids[accepted.num_tokens]
            raise GrammarFailed(f"the grammar does not allow token {bad} here")
        return list(accepted.forced)

    def _match_start(self, token_id: int) -> None:
        self._recent = [*self._recent, token_id][-len(self._start_after) :]
        if self._recent == self._start_after:
            self._is_waiting = False
            self._forced = list(self._matcher.accept(()).forced)


def _allow(row: MaskRows, token_id: int) -> None:
    row[token_id // _BITS] |= np.uint32(1 << token_id % _BITS)
