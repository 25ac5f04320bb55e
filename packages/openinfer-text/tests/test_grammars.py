"""Grammars of response formats and of tool calls, and the place at which they start."""

import json

import pytest

from openinfer_contract import Grammar, unpack_ids
from openinfer_text import (
    CallForm,
    ReasoningMarks,
    StructureError,
    TextModel,
    grammar_of_calls,
    grammar_of_response_format,
    grammar_of_structure,
)
from openinfer_text.parsers._hermes import HermesParser
from openinfer_text.parsers._think import QWEN3

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n"
)
JSON = Grammar(kind="json_object")


@pytest.mark.parametrize(
    ("structure", "grammar"),
    [
        ({"json": {"type": "null"}}, Grammar(kind="json_schema", text='{"type": "null"}')),
        ({"json": '{"a": 1}', "regex": None}, Grammar(kind="json_schema", text='{"a": 1}')),
        ({"json_object": True, "json": None}, JSON),
        ({"regex": "a+"}, Grammar(kind="regex", text="a+")),
        ({"choice": ("a", "é")}, Grammar(kind="choice", text='["a", "\\u00e9"]')),
        ({"grammar": "start: A"}, Grammar(kind="grammar", text="start: A")),
    ],
)
def test_one_structure_is_one_grammar(structure, grammar):
    assert grammar_of_structure(structure) == grammar


@pytest.mark.parametrize(
    ("structure", "field"),
    [
        ({}, ""),
        ({"regex": "a", "json_object": True}, ""),
        ({"regex": 1}, "regex"),
        ({"choice": "ab"}, "choice"),
        ({"choice": []}, "choice"),
        ({"choice": ["a", 1]}, "choice[1]"),
        ({"json": [1]}, "json"),
        ({"json": False}, "json"),
        ({"json_object": False}, ""),
        ({"json_object": "yes"}, "json_object"),
        ({"yaml": "a"}, "yaml"),
    ],
)
def test_other_structures_are_refused_by_field(structure, field):
    with pytest.raises(StructureError) as caught:
        grammar_of_structure(structure)
    assert caught.value.field == field


def test_a_text_response_format_has_no_grammar():
    assert grammar_of_response_format({"type": "text"}) is None
    for broken, field in (({}, "type"), ({"type": "json_schema", "json_schema": 1}, "json_schema")):
        with pytest.raises(StructureError) as caught:
            grammar_of_response_format(broken)
        assert caught.value.field == field


def test_without_a_tool_parser_calls_have_no_grammar():
    assert isinstance(QWEN3, ReasoningMarks)
    assert not isinstance(QWEN3, CallForm)
    assert not isinstance(HermesParser(), ReasoningMarks)


def test_arguments_are_constrained_where_requested():
    tools = [
        {"type": "function", "function": {"name": "f", "strict": True, "parameters": {"a": 1}}},
        {"type": "function", "function": {"name": "g", "parameters": {"b": 1}}},
    ]

    def schemas(**options):
        grammar = grammar_of_calls(HermesParser(), tools, is_single=True, **options)
        form = json.loads(grammar.text)["format"]
        return form["type"], [tag["content"]["json_schema"] for tag in form.get("tags", ())]

    held = [{"a": 1, "type": "object"}, {"b": 1, "type": "object"}]
    assert schemas(is_required=True) == ("tags_with_separator", held)
    assert schemas(is_required=False) == ("triggered_tags", [held[0], {"type": "object"}])
    assert schemas(is_required=False, otherwise=JSON)[0] == "or"


@pytest.mark.parametrize(
    ("turn", "waits", "may_open"),
    [
        ("", True, True),
        ("<think>\n", True, False),
        ("<think>\nhm", True, False),
        ("<think>\n\n</think>\n\n", False, False),
    ],
)
def test_a_grammar_begins_after_the_reasoning(checkpoints, turn, waits, may_open):
    template = CHATML + "{# <think> </think> #}"
    model = TextModel.from_folder(checkpoints["qwen"], chat_template=template)
    grammar = model.after_reasoning(JSON, turn)
    added = model.tokenizer.added_tokens
    if "</think>" in added:
        may_open = may_open and "<think>" in added
        assert unpack_ids(grammar.start_after) == ([added["</think>"]] if waits else [])
    elif "<think>" in turn:
        text = model.decode(unpack_ids(grammar.start_after), skip_special_tokens=False)
        assert text == ("</think>" if waits else "")
    else:
        assert grammar == JSON
        return
    assert bool(grammar.may_open_with) == may_open


def test_without_reasoning_a_grammar_applies_at_once(checkpoints):
    model = TextModel.from_folder(checkpoints["qwen"], chat_template=CHATML)
    assert model.after_reasoning(JSON, "<think>") is JSON
