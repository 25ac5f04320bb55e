"""Required and strict calls: every built-in parser reads all texts that the grammar allows."""

import contextlib
import json
from importlib.util import find_spec

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openinfer_testing.parsers import CallCase, CallConformance, allows
from openinfer_text import StructureError, choose_parser, grammar_of_calls
from openinfer_text.parsers._tool_schemas import ToolSchemas

STRING = {"type": "string"}
PLACE = {"lat": 5, "names": ["a", {"b": "</parameter></function></tool_call>"}]}
CALLS = (
    ("weather", {"city": "Köln", "days": 3, "unit": "null"}),
    ("note", {"text": 'a\n"b" </p> <tool>', "place": PLACE, "size": None, "is_new": True}),
    ("ping", {}),
)


def _dumps(value):
    return json.dumps(value, ensure_ascii=False)


def _hermes(calls):
    called = [f'{{"name": "{name}", "arguments": {_dumps(value)}}}' for name, value in calls]
    return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in called)


def _xml(calls):
    texts = []
    for name, value in calls:
        parameters = "".join(
            f"<parameter={key}>\n{item if isinstance(item, str) else _dumps(item)}\n</parameter>\n"
            for key, item in value.items()
        )
        function = f"<function={name}>\n{parameters}</function>"
        texts.append(f"<tool_call>\n{function}\n</tool_call>")
    return "\n".join(texts)


def _kimi(calls):
    inner = "".join(
        f"<|tool_call_begin|>functions.{name}:{count}<|tool_call_argument_begin|>{_dumps(value)}"
        "<|tool_call_end|>"
        for count, (name, value) in enumerate(calls)
    )
    return f"<|tool_calls_section_begin|>{inner}<|tool_calls_section_end|>"


def _deepseek_v3(calls):
    inner = "\n".join(
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{_dumps(value)}\n```"
        "<｜tool▁call▁end｜>"
        for name, value in calls
    )
    return f"<｜tool▁calls▁begin｜>{inner}<｜tool▁calls▁end｜>"


def _deepseek_v31(calls):
    inner = "".join(
        f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{_dumps(value)}<｜tool▁call▁end｜>"
        for name, value in calls
    )
    return f"<｜tool▁calls▁begin｜>{inner}<｜tool▁calls▁end｜>"


WRITERS = {
    "hermes": _hermes,
    "qwen3_coder": _xml,
    "kimi_k2": _kimi,
    "deepseek_v3": _deepseek_v3,
    "deepseek_v31": _deepseek_v31,
}


def case_of(name, backend="llguidance"):
    write = WRITERS[name]
    written = [write([call]) for call in CALLS] + [write(CALLS), write(CALLS[::-1])]
    return CallCase(form=choose_parser("tool", name, None), written=written, backend=backend)


class TestHeldCalls(CallConformance):
    @pytest.fixture(params=WRITERS)
    def case(self, request):
        return case_of(request.param)


# xgrammar needs torch, which this package must not need, so the development group lacks it.
@pytest.mark.skipif(find_spec("xgrammar") is None, reason="needs openinfer-grammar[xgrammar]")
class TestHeldCallsByXGrammar(CallConformance):
    @pytest.fixture(params=WRITERS)
    def case(self, request):
        return case_of(request.param, "xgrammar")


def _held(schema, **root):
    parameters = {"type": "object", "properties": {"x": schema}, "required": ["x"], **root}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    form = choose_parser("tool", "qwen3_coder", None)
    return grammar_of_calls(form, tools, is_required=True, is_single=True)


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "string", "pattern": "^[a-c]+$"}, "abc", "abd"),
        ({"type": "string", "pattern": "b$"}, "a\nb", "ba"),
        ({"type": "string", "pattern": "a|b"}, "xbx", "xyz"),
        ({"type": "string", "pattern": "^$"}, "", "x"),
        ({"type": "string", "pattern": "^()$"}, "", "x"),
        ({"type": "string", "pattern": "$"}, "x", "</function>"),
        ({"type": "string", "pattern": "^a"}, "ab", "ba"),
        ({"type": "string", "pattern": r"^[(\]]\)\($"}, "])(", "a)("),
        ({"type": "string", "format": "date"}, "2026-01-31", "2026-04-31"),
        ({"enum": ["1", 1, "yes", None]}, "yes", "no"),
        ({"const": "a b"}, "a b", "a"),
        ({"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 3}]}, "1234", "abcd"),
        ({"type": ["integer", "null"], "minimum": 3}, "null", "2"),
        ({"description": "anything"}, "any thing", "a</function>"),
        ({"$ref": "#/$defs/x"}, "[2]", "[true]"),
    ],
)
def test_a_tag_follows_its_schema(schema, good, bad):
    items = {"x": {"type": "array", "items": {"type": "integer"}}}
    grammar = _held(schema, **{"$defs": items})
    for value, is_allowed in ((good, True), (bad, False)):
        tags = f"<function=f>\n<parameter=x>\n{value}\n</parameter>\n</function>"
        assert allows(grammar, f"<tool_call>\n{tags}\n</tool_call>") == is_allowed, value


@pytest.mark.parametrize(
    ("schema", "root", "field"),
    [
        ({}, {"minProperties": 1}, "minProperties"),
        ({}, {"required": ["y"]}, "required"),
        ({}, {"required": 5}, "required"),
        ({}, {"required": [["x"]]}, "required"),
        ({}, {"properties": [], "required": []}, "properties"),
        (False, {}, "properties.x"),
        ({"type": {}}, {}, "properties.x.type"),
        ({"type": "string", "format": []}, {}, "properties.x.format"),
        ({"type": "string", "maxLength": "9"}, {}, "properties.x.maxLength"),
        ({"type": "string", "minLength": True}, {}, "properties.x.minLength"),
        ({"type": "string", "not": {}}, {}, "properties.x.not"),
        ({"type": "string", "format": "ipv6"}, {}, "properties.x.format"),
        ({"type": "string", "pattern": "^a|b$"}, {}, "properties.x.pattern"),
        *(
            ({"type": "string", "pattern": pattern}, {}, "properties.x.pattern")
            for pattern in ("^a)(b$", "^a)|(b$", "^(a$", "^a)$", "^[a$", "a\\", r"^[\]$")
        ),
        ({"type": "string", "pattern": "a", "maxLength": 3}, {}, "properties.x.maxLength"),
        ({"type": ["string", "integer"], "minimum": 3}, {}, "properties.x.minimum"),
        ({"anyOf": [STRING, {"type": "integer", "minimum": 3}]}, {}, "properties.x"),
        ({"type": ["string", "integer"], "anyOf": [STRING]}, {}, "properties.x.allOf"),
        ({"enum": ["</parameter>"]}, {}, "properties.x.enum"),
        ({"$ref": "#/$defs/x"}, {"$defs": {"x": {"$ref": "#/$defs/x"}}}, "properties.x"),
    ],
)  # fmt: skip
def test_schemas_that_a_tag_cannot_follow_are_refused_by_name(schema, root, field):
    with pytest.raises(StructureError) as caught:
        _held(schema, **root)
    assert caught.value.field == f"tools[0].function.parameters.{field}"


KEYWORDS = (
    *("type", "properties", "required", "additionalProperties", "enum", "const", "format"),
    *("pattern", "minLength", "maxLength", "anyOf", "oneOf", "allOf", "$ref", "$defs", "items"),
    *("minimum", "description"),
)
WORDS = st.sampled_from(["object", "string", "integer", "x", "date", "^$", "#/$defs/x", "#/"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 9) | st.floats(0, 1) | WORDS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(KEYWORDS) | WORDS, inner, max_size=3)
    ),
    max_leaves=8,
)
SCHEMAS = st.dictionaries(st.sampled_from(KEYWORDS), VALUES, max_size=4)


@pytest.mark.parametrize("name", [*WRITERS])
@given(parameters=SCHEMAS, of_x=VALUES | SCHEMAS, is_required=st.booleans())
def test_every_schema_is_lowered_or_refused(name, parameters, of_x, is_required):
    form = choose_parser("tool", name, None)
    for given_ in (parameters, {"properties": {"x": of_x}} | parameters):
        function = {"name": "f", "strict": True, "parameters": {"type": "object"} | given_}
        for tool in (function, function | {"parameters": given_}):
            tools = [{"type": "function", "function": tool}]
            with contextlib.suppress(StructureError):
                grammar_of_calls(form, tools, is_required=is_required, is_single=True)
            schemas = ToolSchemas(tools)
            assert isinstance(schemas.kinds("f", "x") | {schemas.accepts("f", {"x"})}, frozenset)


@pytest.mark.parametrize("name", [*WRITERS])
@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "string"},
        {"type": ["object", "null"]},
        {"anyOf": [{"type": "array"}]},
        {"anyOf": [{"type": "object"}, {"type": "array"}]},
        {"$ref": "#/$defs/x", "$defs": {"x": {"type": "array"}}},
        {"enum": ["x"]},
    ],
)
def test_arguments_that_are_no_object_are_refused(name, parameters):
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    form = choose_parser("tool", name, None)
    with pytest.raises(StructureError) as caught:
        grammar_of_calls(form, tools, is_required=True, is_single=True)
    assert caught.value.field == "tools[0].function.parameters.type"


@pytest.mark.parametrize("name", [*WRITERS])
def test_arguments_of_no_type_are_an_object(name):
    tool = {"name": "f", "parameters": {"properties": {"x": STRING}, "required": ["x"]}}
    tools = [{"type": "function", "function": tool}]
    form = choose_parser("tool", name, None)
    grammar = grammar_of_calls(form, tools, is_required=True, is_single=True)
    write = WRITERS[name]
    assert allows(grammar, write([("f", {"x": "a"})]))
    assert name == "qwen3_coder" or not allows(grammar, write([("f", "a")]))
