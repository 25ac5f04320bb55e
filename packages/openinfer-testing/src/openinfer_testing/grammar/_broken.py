"""Back ends that break one rule each, and the rules that must catch them."""

from collections.abc import Mapping, Sequence

import numpy as np

from openinfer_contract import Grammar
from openinfer_grammar import Accepted, GrammarBackend, GrammarRefused, MaskRows, Matcher
from openinfer_testing.grammar._rules import BackendFactory
from openinfer_testing.grammar._vocabulary import EOS_TOKEN_IDS, encode


class BrokenBackend:
    """Wrapper around a correct back end that changes nothing. Each subclass changes one thing.

    Args:
        backend: A correct back end.
    """

    name = "broken"

    def __init__(self, backend: GrammarBackend) -> None:
        self.backend = backend
        self.vocab_size = backend.vocab_size

    def compile(self, grammar: Grammar, /) -> Matcher:
        """See `GrammarBackend.compile`."""
        return self.wrap(self.backend.compile(grammar))

    def wrap(self, matcher: Matcher) -> Matcher:
        """Returns the matcher to use in place of a correct one."""
        return matcher

    @classmethod
    def over(cls, factory: BackendFactory) -> BackendFactory:
        """Returns a factory of broken back ends over the correct ones of `factory`."""
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
    """Does not clear mask rows before filling them."""

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
    """Accepts the first allowed id when a mask is filled."""

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
    """Accepts no id if one of them is not allowed."""

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
    """Rolls back at most one id."""

    class _Rolls(_Matcher):
        def rollback(self, num_tokens: int, /) -> None:
            self.matcher.rollback(min(num_tokens, 1))

    def wrap(self, matcher: Matcher) -> Matcher:
        """See `BrokenBackend.wrap`."""
        return self._Rolls(matcher)


class ForgetsDrafts(BrokenBackend):
    """Fills the rows after drafts with the mask of the first row."""

    class _Forgets(_Matcher):
        def fill_mask(self, rows: MaskRows, drafts: Sequence[int] = (), /) -> int:
            self.matcher.fill_mask(rows)
            rows[1 : 1 + len(drafts)] = rows[0]
            return 1 + len(drafts)

    def wrap(self, matcher: Matcher) -> Matcher:
        """See `BrokenBackend.wrap`."""
        return self._Forgets(matcher)


class ForgetsEnds(BrokenBackend):
    """Does not fill the row after a draft that ends the output."""

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
    """Allows any JSON in place of a given schema."""

    def compile(self, grammar: Grammar, /) -> Matcher:
        """See `GrammarBackend.compile`."""
        if grammar.kind == "json_schema" and "properties" in grammar.text:
            grammar = Grammar(kind="json_object")
        return self.backend.compile(grammar)


class LacksStructuralTags(BrokenBackend):
    """Compiles structural tags as plain JSON."""

    def compile(self, grammar: Grammar, /) -> Matcher:
        """See `GrammarBackend.compile`."""
        matcher = self.backend.compile(grammar)
        if grammar.kind == "structural_tag":
            return self.backend.compile(Grammar(kind="json_object"))
        return matcher


class RefusesWithoutKeyword(BrokenBackend):
    """Refuses a schema without naming the unsupported keyword."""

    def compile(self, grammar: Grammar, /) -> Matcher:
        """See `GrammarBackend.compile`."""
        try:
            return self.backend.compile(grammar)
        except GrammarRefused as error:
            raise GrammarRefused(error.reason) from error


class AcceptsInvalidGrammars(BrokenBackend):
    """Compiles any JSON in place of an invalid grammar."""

    def compile(self, grammar: Grammar, /) -> Matcher:
        """See `GrammarBackend.compile`."""
        try:
            return self.backend.compile(grammar)
        except GrammarRefused as error:
            if error.keyword:
                raise
            return self.backend.compile(Grammar(kind="json_object"))


class ForcesTooMuch(BrokenBackend):
    """Reports forced ids where the grammar leaves a choice."""

    class _Forces(_Matcher):
        def accept(self, token_ids: Sequence[int], /) -> Accepted:
            return self.matcher.accept(token_ids)._replace(forced=(*encode("abcdeft"),))

    def wrap(self, matcher: Matcher) -> Matcher:
        """See `BrokenBackend.wrap`."""
        return self._Forces(matcher)


class SharesMatchers(BrokenBackend):
    """Returns one matcher for all requests with the same grammar."""

    def __init__(self, backend: GrammarBackend) -> None:
        super().__init__(backend)
        self._made: dict[str, Matcher] = {}

    def compile(self, grammar: Grammar, /) -> Matcher:
        """See `GrammarBackend.compile`."""
        return self._made.setdefault(grammar.text, self.backend.compile(grammar))


BROKEN_BACKENDS: Mapping[type[BrokenBackend], tuple[str, ...]] = {
    MissesTokens: ("masks_allow_exactly_the_grammar",),
    EndsAnywhere: ("eos_is_allowed_only_when_complete",),
    LeavesOldBits: ("ids_without_a_token_are_never_allowed",),
    AdvancesByMasks: ("filling_a_mask_changes_no_state",),
    AcceptsAllOrNothing: ("accept_stops_at_the_first_forbidden_id",),
    RollsBackOne: ("rollback_restores_earlier_states",),
    ForgetsDrafts: ("draft_rows_are_the_masks_after_each_draft",),
    ForgetsEnds: ("draft_rows_are_the_masks_after_each_draft",),
    DropsSchemas: ("json_follows_its_schema",),
    LacksStructuralTags: ("every_grammar_kind_compiles",),
    RefusesWithoutKeyword: ("unsupported_keywords_are_refused_by_name",),
    AcceptsInvalidGrammars: ("invalid_grammars_are_refused",),
    ForcesTooMuch: ("forced_ids_are_the_only_continuation",),
    SharesMatchers: ("matchers_are_independent",),
}
"""The rules that must catch each broken back end."""
