import json
import time

import pytest

from openinfer_contract import Grammar
from openinfer_grammar import GrammarRefused, validate


@pytest.mark.parametrize(
    ("schema", "where"),
    [
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"properties": {"a": {"not": {"type": "string"}}}}, "properties.a.not"),
        ({"anyOf": [{"type": "null"}, {"format": "no-such"}]}, "anyOf.1.format"),
        ({"type": "string", "pattern": "(?=a)b"}, "pattern"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"if": {}, "then": {}}}}, "$defs.a.if"),
        ({"$ref": "#/$defs/b"}, "$ref"),
        ({"oneOf": [{"minLength": 1}, {"maxLength": 4}]}, "oneOf"),
        ({"type": "string", "minLength": 5, "maxLength": 3}, "minLength"),
        ({"type": "no-such"}, "type"),
        (
            {"additionalProperties": {"dependentRequired": {"a": ["b"]}}},
            "additionalProperties.dependentRequired",
        ),
        ({"properties": {"a": False}, "required": ["a"]}, "properties.a"),
    ],
)
def test_the_keyword_at_fault_is_named_with_its_place(schema, where):
    with pytest.raises(GrammarRefused) as caught:
        validate(Grammar(kind="json_schema", text=json.dumps({"type": "object"} | schema)))
    assert caught.value.where == where
    assert str(caught.value).startswith(f"{where}: ")
    assert caught.value.keyword in where.split(".")


def test_a_refused_one_of_recommends_any_of():
    branches = [{"type": "integer"}, {"type": "number"}]
    schema = {"anyOf": [{}], "oneOf": branches}
    with pytest.raises(GrammarRefused) as caught:
        validate(Grammar(kind="json_schema", text=json.dumps(schema)))
    assert (caught.value.keyword, caught.value.where) == ("oneOf", "oneOf")
    assert "anyOf" in caught.value.reason
    assert "coerce" not in caught.value.reason


@pytest.mark.parametrize(
    "branches",
    [
        [{"type": "string"}, {"type": "integer"}],
        [
            {"type": "object", "properties": {"kind": {"const": kind}}, "required": ["kind"]}
            for kind in ("cat", "dog")
        ],
    ],
)
def test_a_one_of_written_as_recommended_is_accepted(branches):
    validate(Grammar(kind="json_schema", text=json.dumps({"oneOf": branches})))


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar(kind="json_object"),
        Grammar(kind="json_schema", text='{"type": "string", "format": "date"}'),
        Grammar(kind="json_schema", text="true"),
        Grammar(kind="regex", text=r"\d{3}/[a-z]+"),
        Grammar(kind="choice", text='["yes", "n\\"o\\n", "\U0001f600"]'),
        Grammar(kind="grammar", text='start: "a" | /b+/'),
        Grammar(kind="grammar", text='root ::= "a" | [b-d]+'),
        Grammar(
            kind="structural_tag",
            text='{"structures": [{"begin": "<a>", "schema": {}, "end": "</a>"}],'
            ' "triggers": ["<a"]}',
        ),
    ],
    ids=lambda grammar: f"{grammar.kind} {grammar.text[:12]}",
)
def test_supported_schemas_pass(grammar):
    validate(grammar)


@pytest.mark.parametrize(
    ("form", "where"),
    [
        ({"type": "no_such"}, "format.type"),
        ({"type": "tag", "begin": 3, "end": ""}, "format.begin"),
        ({"type": "sequence", "elements": []}, "format.elements"),
        (
            {
                "type": "triggered_tags",
                "triggers": ["<b"],
                "tags": [{"type": "tag", "begin": "<a>", "end": "", "content": {}}],
            },
            "format.triggers",
        ),
        (
            {
                "type": "tag",
                "begin": "a",
                "end": "b",
                "content": {"type": "json_schema", "json_schema": {"contains": {}}},
            },
            "format.content.json_schema.contains",
        ),
    ],
)
def test_the_part_of_a_structural_tag_at_fault_is_named(form, where):
    with pytest.raises(GrammarRefused) as caught:
        validate(Grammar(kind="structural_tag", text=json.dumps({"format": form})))
    assert caught.value.where == where


def test_a_text_without_bounds_is_refused():
    with pytest.raises(GrammarRefused, match="at most"):
        validate(Grammar(kind="regex", text="a" * 2_000_000))


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar(kind="regex", text="a\ud800"),
        Grammar(kind="choice", text='["\\ud800"]'),
        Grammar(kind="grammar", text='start: "\ud800"'),
        Grammar(kind="regex", text="a\0b"),
        Grammar(kind="json_schema", text="[" * 5000),
        Grammar(kind="json_schema", text='{"items":' * 900 + "{}" + "}" * 900),
        Grammar(
            kind="structural_tag",
            text='{"format":'
            + '{"type":"sequence","elements":[' * 400
            + '{"type":"any_text"}'
            + "]}" * 400
            + "}",
        ),
    ],
    ids=["lone surrogate", "escaped", "in Lark", "NUL", "no JSON", "deep schema", "deep tag"],
)
def test_texts_that_the_library_cannot_read_are_refused(grammar, backend):
    with pytest.raises(GrammarRefused):
        validate(grammar)
    with pytest.raises(GrammarRefused):
        backend.compile(grammar)


@pytest.mark.timed
def test_the_search_for_a_keyword_ends_in_time():
    """Every try compiles a part together with all definitions, which takes long."""
    definitions = {
        f"d{n}": {"type": "object", "properties": {f"p{m}": {"type": "string"} for m in range(20)}}
        for n in range(150)
    }
    schema = {
        "$defs": definitions,
        "properties": {f"q{n}": {"$ref": f"#/$defs/d{n}"} for n in range(150)},
        "uniqueItems": True,
        "unevaluatedItems": True,
    }
    begin = time.thread_time()
    with pytest.raises(GrammarRefused, match="uniqueItems"):
        validate(Grammar(kind="json_schema", text=json.dumps(schema)))
    assert time.thread_time() - begin < 2.0


def test_no_keyword_is_named_when_the_search_ends_early(monkeypatch):
    monkeypatch.setattr("openinfer_grammar._schema_faults._MAX_TRIES", 3)
    properties = {f"p{n}": {"type": "string"} for n in range(9)} | {"odd": {"not": {}}}
    with pytest.raises(GrammarRefused, match='"not"') as caught:
        validate(Grammar(kind="json_schema", text=json.dumps({"properties": properties})))
    assert caught.value.keyword == ""


def test_a_regex_is_refused_in_its_own_terms():
    with pytest.raises(GrammarRefused) as caught:
        validate(Grammar(kind="regex", text=r"\bword"))
    assert "look" in str(caught.value)
    assert "start:" not in str(caught.value)
    assert not str(caught.value).startswith("at ")
