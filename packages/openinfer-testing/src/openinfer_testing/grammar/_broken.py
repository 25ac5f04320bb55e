"""Backends that break one rule each, and the rules that catch them."""

from collections.abc import Mapping, Sequence

import numpy as np

from openinfer_contract import Grammar
from openinfer_grammar import Accepted, GrammarBackend, GrammarRefused, MaskRows, Matcher
from openinfer_testing.grammar._rules import BackendFactory
from openinfer_testing.grammar._vocabulary import EOS_TOKEN_IDS, encode


class BrokenBackend:
    """Passes everything on; subclasses change one thing.

    Args:
        backend: a good one.
    """

    name = "broken"

    def __init__(self, backend: GrammarBackend) -> None:
        self.backend = backend
        self.vocab_size = backend.vocab_size

    def compile(self, grammar: Grammar, /) -> Matcher:
        """See `GrammarBackend.compile`."""
        return self.wrap(self.backend.compile(grammar))

    def wrap(self, matcher: Matcher) -> Matcher:
        """What stands in for a good matcher."""
        return matcher

    @classmethod
    def over(cls, factory: BackendFactory) -> BackendFactory:
        """A factory of these."""
        return lambda *arguments, **options: cls(factory(*arguments, **options))


class _Matcher:
    def __init__(self, matcher: Matcher) -> None:
        self.matcher = matcher

    def fill_mask(self, rows: MaskRows, drafts: Sequence[int] = (), /) -> int:
        return self.matcher.fill_mask(rows, drafts)

    def accept(self, token_ids: Sequence[int], /) -> Accepted:
        return self.matcher.accept(token_ids)

    def rollback(self, num_tokens: int, /) -> None:
        self.matcher.rollback(num_tokens)


class MissesTokens(BrokenBackend):
    """Never allows the letter e."""

    class _Misses(_Matcher):
        def fill_mask(self, rows: MaskRows, drafts: Sequence[int] = (), /) -> int:
            num_rows = self.matcher.fill_mask(rows, drafts)
            rows[:num_rows, encode("e")[0] // 32] &= ~np.uint32(1 << encode("e")[0] % 32)
            return num_rows

    def wrap(self, matcher: Matcher) -> Matcher:
        """See `BrokenBackend.wrap`."""
        return self._Misses(matcher)


class EndsAnywhere(BrokenBackend):
    """Allows an end before the grammar is complete."""

    class _Ends(_Matcher):
        def fill_mask(self, rows: MaskRows, drafts: Sequence[int] = (), /) -> int:
            num_rows = self.matcher.fill_mask(rows, drafts)
            rows[:num_rows, EOS_TOKEN_IDS[0] // 32] |= np.uint32(1 << EOS_TOKEN_IDS[0] % 32)
            return num_rows

    def wrap(self, matcher: Matcher) -> Matcher:
        """See `BrokenBackend.wrap`."""
        return self._Ends(matcher)


class LeavesOldBits(BrokenBackend):
    """Adds to what stands in the rows."""

    class _Leaves(_Matcher):
        def fill_mask(self, rows: MaskRows, drafts: Sequence[int] = (), /) -> int:
            old = rows.copy()
            num_rows = self.matcher.fill_mask(rows, drafts)
            rows[:num_rows] |= old[:num_rows]
            return num_rows

    def wrap(self, matcher: Matcher) -> Matcher:
        """See `BrokenBackend.wrap`."""
        return self._Leaves(matcher)


class AdvancesByMasks(BrokenBackend):
    """Takes the first allowed id for accepted when a mask is filled."""

    class _Advances(_Matcher):
        def fill_mask(self, rows: MaskRows, drafts: Sequence[int] = (), /) -> int:
            num_rows = self.matcher.fill_mask(rows, drafts)
            bits = np.unpackbits(rows[0].view(np.uint8), bitorder="little").nonzero()[0]
            self.matcher.accept([int(bits[0])])
            return num_rows

    def wrap(self, matcher: Matcher) -> Matcher:
        """See `BrokenBackend.wrap`."""
        return self._Advances(matcher)


class AcceptsAllOrNothing(BrokenBackend):
    """Takes no id where one of them is not allowed."""

    class _Accepts(_Matcher):
        def accept(self, token_ids: Sequence[int], /) -> Accepted:
            accepted = self.matcher.accept(token_ids)
            if accepted.num_tokens == len(token_ids):
                return accepted
            self.matcher.rollback(accepted.num_tokens)
            return Accepted(0, ())

    def wrap(self, matcher: Matcher) -> Matcher:
        """See `BrokenBackend.wrap`."""
        return self._Accepts(matcher)


class RollsBackOne(BrokenBackend):
    """Takes back one id, however many are asked for."""

    class _Rolls(_Matcher):
        def rollback(self, num_tokens: int, /) -> None:
            self.matcher.rollback(min(num_tokens, 1))

    def wrap(self, matcher: Matcher) -> Matcher:
        """See `BrokenBackend.wrap`."""
        return self._Rolls(matcher)


class ForgetsDrafts(BrokenBackend):
    """Fills the rows of drafts like the first."""

    class _Forgets(_Matcher):
        def fill_mask(self, rows: MaskRows, drafts: Sequence[int] = (), /) -> int:
            self.matcher.fill_mask(rows)
            rows[1 : 1 + len(drafts)] = rows[0]
            return 1 + len(drafts)

    def wrap(self, matcher: Matcher) -> Matcher:
        """See `BrokenBackend.wrap`."""
        return self._Forgets(matcher)


class ForgetsEnds(BrokenBackend):
    """Leaves the row behind a draft that ends the output as it was."""

    class _Forgets(_Matcher):
        def fill_mask(self, rows: MaskRows, drafts: Sequence[int] = (), /) -> int:
            old = rows.copy()
            num_rows = self.matcher.fill_mask(rows, drafts)
            for index, draft in enumerate(drafts[: num_rows - 1], 1):
                if draft in EOS_TOKEN_IDS:
                    rows[index] = old[index]
            return num_rows

    def wrap(self, matcher: Matcher) -> Matcher:
        """See `BrokenBackend.wrap`."""
        return self._Forgets(matcher)


class DropsSchemas(BrokenBackend):
    """Takes any JSON for a schema that it was given."""

    def compile(self, grammar: Grammar, /) -> Matcher:
        """See `GrammarBackend.compile`."""
        if grammar.kind == "json_schema" and "properties" in grammar.text:
            grammar = Grammar(kind="json_object")
        return self.backend.compile(grammar)


class LacksKinds(BrokenBackend):
    """Reads structural tags as plain JSON."""

    def compile(self, grammar: Grammar, /) -> Matcher:
        """See `GrammarBackend.compile`."""
        matcher = self.backend.compile(grammar)
        if grammar.kind == "structural_tag":
            return self.backend.compile(Grammar(kind="json_object"))
        return matcher


class RefusesWithoutAName(BrokenBackend):
    """Refuses without saying which keyword."""

    def compile(self, grammar: Grammar, /) -> Matcher:
        """See `GrammarBackend.compile`."""
        try:
            return self.backend.compile(grammar)
        except GrammarRefused as error:
            raise GrammarRefused(error.reason) from error


class TakesNonsense(BrokenBackend):
    """Takes anything for what cannot be read."""

    def compile(self, grammar: Grammar, /) -> Matcher:
        """See `GrammarBackend.compile`."""
        try:
            return self.backend.compile(grammar)
        except GrammarRefused as error:
            if error.keyword:
                raise
            return self.backend.compile(Grammar(kind="json_object"))


class ForcesTooMuch(BrokenBackend):
    """Forces an id where there is a choice."""

    class _Forces(_Matcher):
        def accept(self, token_ids: Sequence[int], /) -> Accepted:
            return self.matcher.accept(token_ids)._replace(forced=(*encode("abcdeft"),))

    def wrap(self, matcher: Matcher) -> Matcher:
        """See `BrokenBackend.wrap`."""
        return self._Forces(matcher)


class SharesMatchers(BrokenBackend):
    """Gives the same matcher for the same grammar."""

    def __init__(self, backend: GrammarBackend) -> None:
        super().__init__(backend)
        self._made: dict[str, Matcher] = {}

    def compile(self, grammar: Grammar, /) -> Matcher:
        """See `GrammarBackend.compile`."""
        return self._made.setdefault(grammar.text, self.backend.compile(grammar))


BROKEN_BACKENDS: Mapping[type[BrokenBackend], tuple[str, ...]] = {
    MissesTokens: ("exactly_what_the_grammar_allows_can_be_spelled",),
    EndsAnywhere: ("the_end_is_allowed_where_the_grammar_is_complete",),
    LeavesOldBits: ("ids_without_a_token_are_never_allowed",),
    AdvancesByMasks: ("a_mask_changes_nothing",),
    AcceptsAllOrNothing: ("accept_stops_at_what_is_not_allowed",),
    RollsBackOne: ("rollback_takes_back_ids",),
    ForgetsDrafts: ("rows_of_drafts_are_those_behind_them",),
    ForgetsEnds: ("rows_of_drafts_are_those_behind_them",),
    DropsSchemas: ("json_follows_its_schema",),
    LacksKinds: ("every_kind_is_there",),
    RefusesWithoutAName: ("what_cannot_be_honoured_is_refused_by_keyword",),
    TakesNonsense: ("nonsense_is_refused",),
    ForcesTooMuch: ("forced_ids_are_the_only_way_on",),
    SharesMatchers: ("matchers_do_not_know_of_each_other",),
}
"""Every broken backend, and the rules that must catch it."""
