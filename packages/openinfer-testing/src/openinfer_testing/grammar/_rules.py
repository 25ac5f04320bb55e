"""Every rule a `GrammarBackend` keeps."""

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
"""Called with the content of a tokenizer.json, `vocab_size` and `eos_token_ids`."""

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
    """Something every backend does.

    Attributes:
        body: tries it; raises AssertionError if the backend does not.
    """

    body: Callable[[GrammarBackend], None]

    @property
    def name(self) -> str:
        """The rule in a few words."""
        return self.body.__name__

    def check(self, factory: BackendFactory) -> None:
        """Holds one backend to the rule.

        Raises:
            AssertionError: the backend breaks it.
        """
        backend = factory(tokenizer_json(), vocab_size=VOCAB_SIZE, eos_token_ids=EOS_TOKEN_IDS)
        self.body(backend)


def exactly_what_the_grammar_allows_can_be_spelled(backend: GrammarBackend) -> None:
    """Every way through the masks gives a text of the grammar, and every text is among them."""
    for grammar, texts in (
        (_grammar("regex", "(true|tree|ab{1,2}c)"), {"true", "tree", "abc", "abbc"}),
        (_grammar("choice", ["ab", "abcd", "/"]), {"ab", "abcd", "/"}),
    ):
        found: set[str] = set()
        _walk(backend.compile(grammar), [], found)
        assert found == texts, f"{grammar.text} spells {found}"


def the_end_is_allowed_where_the_grammar_is_complete(backend: GrammarBackend) -> None:
    """There, nowhere else; and alone where nothing can follow."""
    matcher = backend.compile(_grammar("regex", "ab?"))
    assert not _allowed(matcher) & {*EOS_TOKEN_IDS}, "an end before the beginning"
    matcher.accept(encode("a"))
    assert _allowed(matcher) == {*EOS_TOKEN_IDS, *encode("b")}
    matcher.accept(encode("b"))
    assert _allowed(matcher) == {*EOS_TOKEN_IDS}, "nothing can follow but an end"
    assert matcher.accept([EOS_TOKEN_IDS[1]]).num_tokens == 1, "an end that the mask allows"
    assert matcher.accept(encode("b")).num_tokens == 0, "nothing follows an end"
    matcher = backend.compile(_grammar("regex", "a+"))
    matcher.accept([*encode("a"), EOS_TOKEN_IDS[0]])
    assert _allowed(matcher) == {*EOS_TOKEN_IDS}, "another end may, of a row in flight"


def ids_without_a_token_are_never_allowed(backend: GrammarBackend) -> None:
    """Neither those of the model that the tokenizer lacks, nor the rest of the last word."""
    matcher = backend.compile(_grammar("regex", "(.|\n)*"))
    words = num_mask_words(VOCAB_SIZE)
    rows = np.full((1, words), 0xFFFFFFFF, np.uint32)
    matcher.fill_mask(rows)
    bits = np.unpackbits(rows.view(np.uint8), bitorder="little")
    assert bits[: EOS_TOKEN_IDS[0]].all() or bits[:128].all(), "any text may come"
    assert not bits[EOS_TOKEN_IDS[-1] + 1 :].any(), "ids that have no token"


def a_mask_changes_nothing(backend: GrammarBackend) -> None:
    """Filled twice it is the same, and the matcher is where it was."""
    matcher = backend.compile(_grammar("regex", "a(b|x)d"))
    matcher.accept(encode("a"))
    assert _allowed(matcher) == _allowed(matcher)
    assert matcher.accept(encode("xd")).num_tokens == 2


def accept_stops_at_what_is_not_allowed(backend: GrammarBackend) -> None:
    """It says how many ids were taken, and the matcher stands behind those."""
    matcher = backend.compile(_grammar("regex", "abcd"))
    assert matcher.accept(encode("abxd")).num_tokens == 2
    assert matcher.accept([EOS_TOKEN_IDS[0]]).num_tokens == 0
    assert matcher.accept(encode("cd")).num_tokens == 2, "it can still go on"
    assert matcher.accept(()).num_tokens == 0


def rollback_takes_back_ids(backend: GrammarBackend) -> None:
    """Also an end, and never more than there were."""
    matcher = backend.compile(_grammar("regex", "ab(c|d)e?"))
    masks = [_allowed(matcher)]
    ids = [*encode("abde"), EOS_TOKEN_IDS[0]]
    for token_id in ids:
        assert matcher.accept([token_id]).num_tokens == 1
        masks.append(_allowed(matcher))
    matcher.rollback(0)
    for num_left in (4, 1, 0):
        matcher.rollback(len(ids) - num_left)
        assert _allowed(matcher) == masks[num_left], f"back at {num_left} tokens"
        matcher.accept(ids[num_left:])
    try:
        matcher.rollback(len(ids) + 1)
    except ValueError:
        return
    raise AssertionError("more was taken back than there was")


def rows_of_drafts_are_those_behind_them(backend: GrammarBackend) -> None:
    """K + 1 rows for K drafts, up to the one that is not allowed; the matcher stays."""
    matcher = backend.compile(_grammar("regex", "a(b|c)d+"))
    words = num_mask_words(VOCAB_SIZE)
    rows = np.zeros((5, words), np.uint32)
    assert matcher.fill_mask(rows, encode("acdd")) == 5
    for index in range(5):
        one = np.zeros((1, words), np.uint32)
        matcher.fill_mask(one)
        assert (rows[index] == one[0]).all(), f"row {index}"
        if index < 4:
            matcher.accept(encode("acdd")[index : index + 1])
    matcher.rollback(4)
    rows[:] = 7
    assert matcher.fill_mask(rows, encode("axdd")) == 2, "row 1 is behind a, and x is not allowed"
    assert (rows[2:] == 7).all(), "rows behind a draft that is not allowed are left alone"
    assert matcher.accept(encode("ab")).num_tokens == 2, "drafts are not accepted"
    matcher.accept(encode("d"))
    rows[:] = 7
    assert matcher.fill_mask(rows, [*encode("d"), EOS_TOKEN_IDS[1], *encode("d")]) == 3
    ends = np.unpackbits(rows[2].view(np.uint8), bitorder="little").nonzero()[0]
    assert {*ends.tolist()} == {*EOS_TOKEN_IDS}, "the row behind a draft that ends the output"
    assert (rows[3:] == 7).all(), "nothing stands behind an end"
    assert _allowed(matcher) > {*EOS_TOKEN_IDS}, "the matcher has not ended"


def json_follows_its_schema(backend: GrammarBackend) -> None:
    """Whatever is drawn from the masks."""
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


def every_kind_is_there(backend: GrammarBackend) -> None:
    """JSON objects, EBNF and structural tags, beside those of the other rules."""
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


def what_cannot_be_honoured_is_refused_by_keyword(backend: GrammarBackend) -> None:
    """And by its place in the schema."""
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    refused = _refusal(backend, _grammar("json_schema", schema))
    assert refused.keyword == "uniqueItems", refused
    assert refused.where == "properties.a.uniqueItems", refused
    strange = {"type": "structural_tag", "format": {"type": "no_such_format"}}
    refused = _refusal(backend, _grammar("structural_tag", strange))
    assert "no_such_format" in str(refused)


def nonsense_is_refused(backend: GrammarBackend) -> None:
    """Texts that are not of their kind."""
    for grammar in (
        Grammar(kind="regex", text="(a"),
        Grammar(kind="json_schema", text="{"),
        Grammar(kind="json_schema", text="3"),
        Grammar(kind="choice", text="[]"),
        Grammar(kind="choice", text="[1]"),
        Grammar(kind="structural_tag", text="{}"),
        Grammar(kind="grammar", text="root ::= undefined_rule"),
    ):
        assert str(_refusal(backend, grammar)), "without a reason"


def forced_ids_are_the_only_way_on(backend: GrammarBackend) -> None:
    """They spell a beginning of everything that can follow, and are accepted."""
    matcher = backend.compile(_grammar("regex", "abcdef(true|false)"))
    forced = matcher.accept(()).forced
    assert "abcdef".startswith(decode(forced)), decode(forced)
    assert matcher.accept(forced).num_tokens == len(forced)
    rest = encode("abcdef"[len(decode(forced)) :])
    assert matcher.accept(rest).num_tokens == len(rest)
    assert matcher.accept(()).forced == (), "there is a choice here"


def matchers_do_not_know_of_each_other(backend: GrammarBackend) -> None:
    """Two of one backend, and of one grammar."""
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
            exactly_what_the_grammar_allows_can_be_spelled,
            the_end_is_allowed_where_the_grammar_is_complete,
            ids_without_a_token_are_never_allowed,
            a_mask_changes_nothing,
            accept_stops_at_what_is_not_allowed,
            rollback_takes_back_ids,
            rows_of_drafts_are_those_behind_them,
            json_follows_its_schema,
            every_kind_is_there,
            what_cannot_be_honoured_is_refused_by_keyword,
            nonsense_is_refused,
            forced_ids_are_the_only_way_on,
            matchers_do_not_know_of_each_other,
        ),
    )
}
"""Every rule by name."""


def _grammar(kind: Any, content: Any) -> Grammar:
    text = content if isinstance(content, str) else json.dumps(content)
    return Grammar(kind=kind, text=text)


def _allowed(matcher: Matcher) -> set[int]:
    rows = np.zeros((1, num_mask_words(VOCAB_SIZE)), np.uint32)
    assert matcher.fill_mask(rows) == 1
    return {*np.unpackbits(rows.view(np.uint8), bitorder="little").nonzero()[0].tolist()}


def _walk(matcher: Matcher, ids: list[int], found: set[str]) -> None:
    """Every text that the masks allow from here."""
    for token_id in _allowed(matcher):
        if token_id in EOS_TOKEN_IDS:
            found.add(decode(ids))
            continue
        assert matcher.accept([token_id]).num_tokens == 1, "the mask allows what accept does not"
        _walk(matcher, [*ids, token_id], found)
        matcher.rollback(1)


def _draw(matcher: Matcher, seed: int) -> str:
    """A text drawn evenly from the masks."""
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
