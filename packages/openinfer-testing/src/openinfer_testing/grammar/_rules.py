"""Rules of `GrammarBackend`."""

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from openinfer_contract import Grammar
from openinfer_grammar import GrammarBackend, GrammarRefused, Matcher, num_mask_words
from openinfer_testing.grammar._vocabulary import (
    EOS_TOKEN_IDS,
    VOCAB_SIZE,
    decode,
    encode,
    tokenizer_json,
)

BackendFactory = Callable[..., GrammarBackend]
"""Makes a back end from the bytes of a tokenizer.json, `vocab_size` and `eos_token_ids`."""

_MAX_STEPS = 200
_SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 4},
        "tags": {"type": "array", "items": {"enum": ["ab", "cd"]}, "maxItems": 2},
        "is_true": {"type": "boolean"},
    },
    "required": ["name", "tags", "is_true"],
    "additionalProperties": False,
}
_TAG = {
    "type": "tag",
    "begin": "<call>",
    "content": {"type": "json_schema", "json_schema": {"type": "boolean"}},
    "end": "</call>",
}


@dataclass(frozen=True, slots=True)
class GrammarRule:
    """Requirement that every `GrammarBackend` must satisfy.

    Attributes:
        body: Checks the requirement; raises AssertionError if the back end violates it.
    """

    body: Callable[[GrammarBackend], None]

    @property
    def name(self) -> str:
        """Name of the rule, which is the name of its function."""
        return self.body.__name__

    def check(self, factory: BackendFactory) -> None:
        """Checks one back end.

        Raises:
            AssertionError: The back end violates the rule.
        """
        backend = factory(tokenizer_json(), vocab_size=VOCAB_SIZE, eos_token_ids=EOS_TOKEN_IDS)
        self.body(backend)


def masks_allow_exactly_the_grammar(backend: GrammarBackend) -> None:
    """Following the masks must lead to every text of the grammar, and to no other."""
    for grammar, texts in (
        (_grammar("regex", "(true|tree|ab{1,2}c)"), {"true", "tree", "abc", "abbc"}),
        (_grammar("choice", ["ab", "abcd", "/"]), {"ab", "abcd", "/"}),
    ):
        found: set[str] = set()
        _walk(backend.compile(grammar), [], found)
        assert found == texts, f"{grammar.text} spells {found}"


def eos_is_allowed_only_when_complete(backend: GrammarBackend) -> None:
    """A mask must allow EOS if and only if the text so far is complete.

    If the text cannot continue, the mask must allow only EOS.
    """
    matcher = backend.compile(_grammar("regex", "ab?"))
    assert not _allowed(matcher) & {*EOS_TOKEN_IDS}, (
        "EOS must not be allowed before the first token of an incomplete text"
    )
    matcher.accept(encode("a"))
    assert _allowed(matcher) == {*EOS_TOKEN_IDS, *encode("b")}
    matcher.accept(encode("b"))
    assert _allowed(matcher) == {*EOS_TOKEN_IDS}, "only EOS may follow a text that cannot continue"
    assert matcher.accept([EOS_TOKEN_IDS[1]]).num_tokens == 1, (
        "accept must take an EOS id that the mask allows"
    )
    assert matcher.accept(encode("b")).num_tokens == 0, "accept must take no text after EOS"
    matcher = backend.compile(_grammar("regex", "a+"))
    matcher.accept([*encode("a"), EOS_TOKEN_IDS[0]])
    assert _allowed(matcher) == {*EOS_TOKEN_IDS}, (
        "after EOS only EOS is allowed: a row in flight may sample it again"
    )


def ids_without_a_token_are_never_allowed(backend: GrammarBackend) -> None:
    """Masks must clear ids that the tokenizer lacks, and the unused bits of the last word."""
    matcher = backend.compile(_grammar("regex", "(.|\n)*"))
    words = num_mask_words(VOCAB_SIZE)
    rows = np.full((1, words), 0xFFFFFFFF, np.uint32)
    matcher.fill_mask(rows)
    bits = np.unpackbits(rows.view(np.uint8), bitorder="little")
    assert bits[: EOS_TOKEN_IDS[0]].all() or bits[:128].all(), (
        "a grammar of any text must allow every text token"
    )
    assert not bits[EOS_TOKEN_IDS[-1] + 1 :].any(), "ids without a token must not be allowed"


def filling_a_mask_changes_no_state(backend: GrammarBackend) -> None:
    """Filling a mask twice gives the same mask, and does not advance the matcher."""
    matcher = backend.compile(_grammar("regex", "a(b|x)d"))
    matcher.accept(encode("a"))
    assert _allowed(matcher) == _allowed(matcher)
    assert matcher.accept(encode("xd")).num_tokens == 2


def accept_stops_at_the_first_forbidden_id(backend: GrammarBackend) -> None:
    """`accept` returns the number of leading ids that are allowed, and advances over those only."""
    matcher = backend.compile(_grammar("regex", "abcd"))
    assert matcher.accept(encode("abxd")).num_tokens == 2
    assert matcher.accept([EOS_TOKEN_IDS[0]]).num_tokens == 0
    assert matcher.accept(encode("cd")).num_tokens == 2, (
        "a matcher must continue after a forbidden id was refused"
    )
    assert matcher.accept(()).num_tokens == 0


def rollback_restores_earlier_states(backend: GrammarBackend) -> None:
    """`rollback` undoes accepted ids, EOS included.

    Undoing more than were accepted is a ValueError.
    """
    matcher = backend.compile(_grammar("regex", "ab(c|d)e?"))
    masks = [_allowed(matcher)]
    ids = [*encode("abde"), EOS_TOKEN_IDS[0]]
    for token_id in ids:
        assert matcher.accept([token_id]).num_tokens == 1
        masks.append(_allowed(matcher))
    matcher.rollback(0)
    for num_left in (4, 1, 0):
        matcher.rollback(len(ids) - num_left)
        assert _allowed(matcher) == masks[num_left], (
            f"the mask after a rollback to {num_left} tokens differs from the first time"
        )
        matcher.accept(ids[num_left:])
    try:
        matcher.rollback(len(ids) + 1)
    except ValueError:
        return
    raise AssertionError("rollback of more ids than were accepted must raise ValueError")


def draft_rows_are_the_masks_after_each_draft(backend: GrammarBackend) -> None:
    """`fill_mask` fills K + 1 rows for K drafts, up to the first forbidden one.

    The matcher does not advance.
    """
    matcher = backend.compile(_grammar("regex", "a(b|c)d+"))
    words = num_mask_words(VOCAB_SIZE)
    rows = np.zeros((5, words), np.uint32)
    assert matcher.fill_mask(rows, encode("acdd")) == 5
    for index in range(5):
        one = np.zeros((1, words), np.uint32)
        matcher.fill_mask(one)
        assert (rows[index] == one[0]).all(), f"row {index} must be the mask after {index} drafts"
        if index < 4:
            matcher.accept(encode("acdd")[index : index + 1])
    matcher.rollback(4)
    rows[:] = 7
    assert matcher.fill_mask(rows, encode("axdd")) == 2, (
        "rows must end after the draft a: x is forbidden"
    )
    assert (rows[2:] == 7).all(), "rows after a forbidden draft must not be written"
    assert matcher.accept(encode("ab")).num_tokens == 2, "fill_mask must not accept drafts"
    matcher.accept(encode("d"))
    rows[:] = 7
    assert matcher.fill_mask(rows, [*encode("d"), EOS_TOKEN_IDS[1], *encode("d")]) == 3
    ends = np.unpackbits(rows[2].view(np.uint8), bitorder="little").nonzero()[0]
    assert {*ends.tolist()} == {*EOS_TOKEN_IDS}, "the row after an EOS draft must allow only EOS"
    assert (rows[3:] == 7).all(), "rows after the row of an EOS draft must not be written"
    assert _allowed(matcher) > {*EOS_TOKEN_IDS}, "fill_mask must not end the matcher"


def json_follows_its_schema(backend: GrammarBackend) -> None:
    """Every text drawn from the masks of a JSON schema must be valid under it."""
    within = _TAG | {"content": {"type": "json_schema", "json_schema": _SCHEMA}}
    for seed in range(16):
        if seed % 2:
            text = _draw(backend.compile(_grammar("structural_tag", {"format": within})), seed)
            text = text.removeprefix("<call>").removesuffix("</call>")
        else:
            text = _draw(backend.compile(_grammar("json_schema", _SCHEMA)), seed)
        value = json.loads(text)
        assert set(value) == {"name", "tags", "is_true"}, text
        assert len(value["name"]) <= 4, text
        assert len(value["tags"]) <= 2, text
        assert set(value["tags"]) <= {"ab", "cd"}, text
        assert isinstance(value["is_true"], bool), text


def every_grammar_kind_compiles(backend: GrammarBackend) -> None:
    """JSON objects, EBNF and structural tags must compile and allow exactly their texts.

    Other rules cover the remaining kinds.
    """
    begun = backend.compile(Grammar(kind="json_object"))
    assert begun.accept(encode('{"a": [1, {"b": null}]}')).num_tokens == 23
    assert _allowed(begun) == {*EOS_TOKEN_IDS}
    text = _draw(backend.compile(_grammar("grammar", 'root ::= "x" ("a" | "b") "y"')), 1)
    assert text in ("xay", "xby")
    only = {"type": "tags_with_separator", "tags": [_TAG], "separator": ",", "at_least_one": True}
    tag = {"type": "structural_tag", "format": only | {"stop_after_first": True}}
    text = _draw(backend.compile(_grammar("structural_tag", tag)), 2)
    assert text in ("<call>true</call>", "<call>false</call>"), text
    triggered = {"type": "triggered_tags", "tags": [_TAG], "triggers": ["<call"]}
    matcher = backend.compile(_grammar("structural_tag", {"format": triggered}))
    assert matcher.accept(encode("say <call>true</call> so <call>no")).num_tokens == 31
    free = _TAG | {"content": {"type": "any_text", "excludes": ["ab", "cd"]}, "end": "\nab\n"}
    for text, num_allowed in (("<call>a\na\nab\n", 13), ("<call>c\nab", 10), ("<call>xcdx", 8)):
        matcher = backend.compile(_grammar("structural_tag", {"format": free}))
        assert matcher.accept(encode(text)).num_tokens == num_allowed, text


def unsupported_keywords_are_refused_by_name(backend: GrammarBackend) -> None:
    """A schema with an unsupported keyword must be refused with the keyword and its path."""
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    refused = _refusal(backend, _grammar("json_schema", schema))
    assert refused.keyword == "uniqueItems", refused
    assert refused.where == "properties.a.uniqueItems", refused
    strange = {"type": "structural_tag", "format": {"type": "no_such_format"}}
    refused = _refusal(backend, _grammar("structural_tag", strange))
    assert "no_such_format" in str(refused)


def invalid_grammars_are_refused(backend: GrammarBackend) -> None:
    """A text that is invalid for its kind of grammar must be refused with a reason."""
    for grammar in (
        Grammar(kind="regex", text="(a"),
        Grammar(kind="json_schema", text="{"),
        Grammar(kind="json_schema", text="3"),
        Grammar(kind="choice", text="[]"),
        Grammar(kind="choice", text="[1]"),
        Grammar(kind="structural_tag", text="{}"),
        Grammar(kind="grammar", text="root ::= undefined_rule"),
    ):
        assert str(_refusal(backend, grammar)), "a refusal must carry a reason"


def forced_ids_are_the_only_continuation(backend: GrammarBackend) -> None:
    """Forced ids must be a prefix of every possible continuation, and `accept` must take them."""
    matcher = backend.compile(_grammar("regex", "abcdef(true|false)"))
    forced = matcher.accept(()).forced
    assert "abcdef".startswith(decode(forced)), decode(forced)
    assert matcher.accept(forced).num_tokens == len(forced)
    rest = encode("abcdef"[len(decode(forced)) :])
    assert matcher.accept(rest).num_tokens == len(rest)
    assert matcher.accept(()).forced == (), "no id may be forced where the grammar leaves a choice"


def matchers_are_independent(backend: GrammarBackend) -> None:
    """Two matchers of one grammar must not affect each other."""
    grammar = _grammar("regex", "ab(c|d)")
    first, second = backend.compile(grammar), backend.compile(grammar)
    first.accept(encode("ab"))
    assert second.accept(encode("ab")).num_tokens == 2
    del first
    assert second.accept(encode("c")).num_tokens == 1


GRAMMAR_RULES: Mapping[str, GrammarRule] = {
    rule.name: rule
    for rule in map(
        GrammarRule,
        (
            masks_allow_exactly_the_grammar,
            eos_is_allowed_only_when_complete,
            ids_without_a_token_are_never_allowed,
            filling_a_mask_changes_no_state,
            accept_stops_at_the_first_forbidden_id,
            rollback_restores_earlier_states,
            draft_rows_are_the_masks_after_each_draft,
            json_follows_its_schema,
            every_grammar_kind_compiles,
            unsupported_keywords_are_refused_by_name,
            invalid_grammars_are_refused,
            forced_ids_are_the_only_continuation,
            matchers_are_independent,
        ),
    )
}
"""Every rule, by name."""


def _grammar(kind: Any, content: Any) -> Grammar:
    text = content if isinstance(content, str) else json.dumps(content)
    return Grammar(kind=kind, text=text)


def _allowed(matcher: Matcher) -> set[int]:
    rows = np.zeros((1, num_mask_words(VOCAB_SIZE)), np.uint32)
    assert matcher.fill_mask(rows) == 1
    return {*np.unpackbits(rows.view(np.uint8), bitorder="little").nonzero()[0].tolist()}


def _walk(matcher: Matcher, ids: list[int], found: set[str]) -> None:
    """Collects every text that the masks allow from here."""
    for token_id in _allowed(matcher):
        if token_id in EOS_TOKEN_IDS:
            found.add(decode(ids))
            continue
        assert matcher.accept([token_id]).num_tokens == 1, "the mask allows what accept does not"
        _walk(matcher, [*ids, token_id], found)
        matcher.rollback(1)


def _draw(matcher: Matcher, seed: int) -> str:
    """Returns a text whose ids are drawn uniformly from the masks."""
    chance = random.Random(seed)
    ids: list[int] = []
    for _ in range(_MAX_STEPS):
        token_id = chance.choice(sorted(_allowed(matcher)))
        assert matcher.accept([token_id]).num_tokens == 1, "the mask allows what accept does not"
        if token_id in EOS_TOKEN_IDS:
            return decode(ids)
        ids.append(token_id)
    raise AssertionError(f"no end after {_MAX_STEPS} tokens: {decode(ids)}")


def _refusal(backend: GrammarBackend, grammar: Grammar) -> GrammarRefused:
    try:
        backend.compile(grammar)
    except GrammarRefused as refused:
        return refused
    raise AssertionError(f"not refused: {grammar}")
