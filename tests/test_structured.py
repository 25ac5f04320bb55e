"""Structured output through the official SDK, with the built-in model on one server."""

import json
import re
from pathlib import Path
from typing import Any, Literal

import pytest
from openai import BadRequestError
from pydantic import BaseModel, Field


class Step(BaseModel):
    explanation: str = Field(max_length=12)
    is_done: bool


class Answer(BaseModel):
    kind: Literal["sum", "difference"]
    steps: list[Step] = Field(max_length=2)


TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "the weather of a city",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"enum": ["Oslo", "Lima"]},
                    "days": {"type": "integer", "minimum": 1, "maximum": 9},
                },
                "required": ["city", "days"],
                "additionalProperties": False,
            },
        },
    },
    {"type": "function", "function": {"name": "get_time"}},
]
WEATHER = {"city": ("Oslo", "Lima"), "days": range(1, 10)}
HOT: dict[str, Any] = {"model": "tiny", "temperature": 2.0, "seed": 3, "max_tokens": 300}
ASK: list[Any] = [{"role": "user", "content": "What is the weather in Lima?"}]


def check_weather(arguments: str) -> None:
    value = json.loads(arguments)
    assert value.keys() == WEATHER.keys()
    assert all(value[key] in allowed for key, allowed in WEATHER.items())


def test_a_pydantic_model_is_what_comes_back(tiny_server: Any) -> None:
    chat = tiny_server.client.chat.completions
    for seed in range(4):
        whole = chat.parse(messages=ASK, response_format=Answer, **HOT | {"seed": seed}).choices[0]
        assert whole.finish_reason == "stop"
        assert isinstance(whole.message.parsed, Answer)
        assert whole.message.content is not None
        with chat.stream(messages=ASK, response_format=Answer, **HOT | {"seed": seed}) as stream:
            final = stream.get_final_completion().choices[0].message
        assert final.content == whole.message.content, "streamed or not, it is the same answer"
        assert final.parsed == whole.message.parsed


def test_samples_differ_and_all_follow(tiny_server: Any) -> None:
    answers = tiny_server.client.chat.completions.create(
        messages=ASK,
        n=3,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": Answer.model_json_schema()},
        },
        logprobs=True,
        **HOT,
    )
    texts = [choice.message.content or "" for choice in answers.choices]
    assert len(set(texts)) > 1
    for choice, text in zip(answers.choices, texts, strict=True):
        Answer.model_validate_json(text)
        assert choice.logprobs is not None
        tokens = [token.token for token in choice.logprobs.content or ()]
        assert "".join(tokens).startswith(text), "every token has its logprob"


@pytest.mark.parametrize("choice", ["required", "named"])
def test_a_call_that_is_demanded_comes(tiny_server: Any, choice: str) -> None:
    wanted: Any = {"type": "function", "function": {"name": "get_weather"}}
    options: dict[str, Any] = HOT | {
        "messages": ASK,
        "tools": TOOLS,
        "tool_choice": wanted if choice == "named" else choice,
        "parallel_tool_calls": False,
    }
    chat = tiny_server.client.chat.completions
    called = set()
    for seed in range(3):
        message = chat.create(**options | {"seed": seed}).choices[0]
        assert message.finish_reason == ("stop" if choice == "named" else "tool_calls")
        assert not message.message.content
        (call,) = message.message.tool_calls or ()
        called.add(call.function.name)
        if call.function.name == "get_weather":
            check_weather(call.function.arguments)
        else:
            assert json.loads(call.function.arguments) == {}
        streamed = ""
        for chunk in chat.create(stream=True, **options | {"seed": seed}):
            for delta in (d for c in chunk.choices for d in c.delta.tool_calls or ()):
                assert delta.function is not None
                streamed += delta.function.arguments or ""
        assert streamed == call.function.arguments
    assert called <= {"get_weather", "get_time"}
    assert choice == "required" or called == {"get_weather"}


def test_several_calls_may_be_demanded(tiny_server: Any) -> None:
    answers = tiny_server.client.chat.completions.create(
        messages=ASK, tools=TOOLS, tool_choice="required", n=6, **HOT | {"max_tokens": 400}
    )
    for choice in answers.choices:
        calls = choice.message.tool_calls or ()
        assert calls
        if choice.finish_reason == "length":
            calls = calls[:-1]
        for call in calls:
            assert call.function.name in ("get_weather", "get_time")
            if call.function.name == "get_weather":
                check_weather(call.function.arguments)


XGRAMMAR = ("qwen3_coder", "--structured-outputs-backend", "xgrammar")


@pytest.fixture(
    scope="module",
    params=[("qwen3_coder",), ("kimi_k2",), ("deepseek_v3",), ("deepseek_v31",), XGRAMMAR],
    ids=lambda arguments: "-".join(arguments[::2]),
)
def foreign_server(request: Any, start_shared_server: Any) -> Any:
    """The built-in model, configured to write tool calls in other models' formats."""
    return start_shared_server("--tool-call-parser", *request.param)


@pytest.fixture
def seeds(request: Any) -> range:
    """Cases of single calls only, if no call is forced: several calls would take long."""
    return range(0, 6, 4 if "xgrammar" in request.node.name else 1)


def test_calls_are_demanded_in_the_way_of_every_parser(foreign_server: Any, seeds: range) -> None:
    chat = foreign_server.client.chat.completions
    strict = [json.loads(json.dumps(tool)) for tool in TOOLS]
    strict[0]["function"]["strict"] = True
    called = set()
    for seed in seeds:
        options: dict[str, Any] = HOT | {"messages": ASK, "tools": strict, "seed": seed}
        options |= {"tool_choice": "required", "parallel_tool_calls": seed % 2 == 0}
        choice = chat.create(**options).choices[0]
        calls = choice.message.tool_calls or ()
        assert not choice.message.content or choice.finish_reason == "length"
        assert len(calls) == 1 or seed % 2 == 0
        if choice.finish_reason == "length":
            continue
        for call in calls:
            called.add(call.function.name)
            if call.function.name == "get_weather":
                check_weather(call.function.arguments)
            else:
                assert json.loads(call.function.arguments) == {}
        with chat.stream(**options) as stream:
            streamed = stream.get_final_completion().choices[0].message
        assert [c.function.arguments for c in streamed.tool_calls or ()] == [
            c.function.arguments for c in choice.message.tool_calls or ()
        ]
    assert called <= {"get_weather", "get_time"}
    assert "get_weather" in called or len(seeds) < 6
    named: Any = {"type": "function", "function": {"name": "get_weather"}}
    (call,) = chat.create(**options | {"tool_choice": named}).choices[0].message.tool_calls
    check_weather(call.function.arguments)


@pytest.mark.parametrize("foreign_server", [XGRAMMAR], indirect=True, ids=["xgrammar"])
@pytest.mark.parametrize("is_streamed", [False, True])
def test_what_the_other_backend_cannot_hold_is_refused_by_name(
    foreign_server: Any, is_streamed: bool
) -> None:
    def ask(**fields: Any) -> Any:
        chat = foreign_server.client.chat.completions
        return chat.create(messages=ASK, stream=is_streamed, **HOT | fields)

    text = {"type": "string", "maxLength": 200}
    parameters = {"type": "object", "properties": {"text": text}, "required": ["text"]}
    tools = [{"type": "function", "function": {"name": "note", "parameters": parameters}}]
    schema = {"type": "array", "items": {"type": "number", "multipleOf": 2}}
    formed = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    for fields, param, word in (
        ({"tools": tools, "tool_choice": "required"}, "tools", "maxLength 10"),
        ({"response_format": formed}, "response_format.json_schema.schema", "items.multipleOf"),
    ):
        with pytest.raises(BadRequestError) as caught:
            ask(**fields)
        assert caught.value.param == param, caught.value.message
        assert word in caught.value.message


def test_strict_tools_are_held_wherever_they_are_called(tiny_server: Any) -> None:
    strict = json.loads(json.dumps(TOOLS[:1]))
    strict[0]["function"]["strict"] = True
    for seed in range(3):
        choice = tiny_server.client.chat.completions.create(
            messages=[{"role": "user", "content": "Call get_weather for Lima."}],
            tools=strict,
            **HOT | {"temperature": 0.7, "seed": seed},
        ).choices[0]
        for call in choice.message.tool_calls or ():
            assert call.function.name == "get_weather"
            if choice.finish_reason == "tool_calls":
                check_weather(call.function.arguments)


@pytest.mark.parametrize(
    ("structure", "pattern"),
    [
        ({"regex": r"[A-F0-9]{4}-\d{2}"}, r"[A-F0-9]{4}-\d{2}"),
        ({"choice": ["red", "dark green", "blue"]}, "red|dark green|blue"),
        ({"grammar": 'start: "x" /[0-9]{2,4}/ "y"'}, "x[0-9]{2,4}y"),
        ({"grammar": 'root ::= "no" | "yes" [!]'}, "no|yes!"),
        ({"json": {"type": "integer", "minimum": 3, "maximum": 5}}, "[345]"),
        ({"json_object": True}, r"\{.*\}?"),
        (
            {
                "structural_tag": {
                    "structures": [{"begin": "<n>", "schema": {"type": "null"}, "end": "</n>"}],
                    "triggers": ["<n"],
                }
            },
            ".*",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_structured_outputs_of_completions(
    tiny_server: Any, structure: dict[str, Any], pattern: str
) -> None:
    body = HOT | {"prompt": "Once", "structured_outputs": structure, "max_tokens": 60}
    status, answer = tiny_server.post("/v1/completions", body)
    assert status == 200, answer
    (choice,) = answer["choices"]
    assert re.fullmatch(pattern, choice["text"], re.DOTALL), choice
    if choice["finish_reason"] == "stop" and "json_object" in structure:
        assert isinstance(json.loads(choice["text"]), dict)


UNIQUE = {
    "type": "json_schema",
    "json_schema": {"name": "a", "schema": {"type": "array", "uniqueItems": True}},
}
NAMED = {"type": "function", "function": {"name": "x"}}


@pytest.mark.parametrize(
    ("fields", "param", "word"),
    [
        (
            {"response_format": UNIQUE},
            "response_format.json_schema.schema.uniqueItems",
            "uniqueItems",
        ),
        ({"response_format": {"type": "xml"}}, "response_format.type", "json_schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "object"),
        ({"structured_outputs": {"regex": "(a"}}, "structured_outputs.regex", "unclosed"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", "one of"),
        ({"structured_outputs": {"yaml": "a"}}, "structured_outputs.yaml", "json, regex"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "at least one"),
        ({"tool_choice": "required"}, "tool_choice", "tools"),
        ({"tool_choice": NAMED, "tools": TOOLS}, "tool_choice.function.name", "none of"),
        (
            {
                "tool_choice": "required",
                "tools": TOOLS,
                "response_format": {"type": "json_object"},
            },
            "tool_choice",
            "response_format",
        ),
        (
            {"response_format": {"type": "json_object"}, "ignore_eos": True},
            "ignore_eos",
            "has an end",
        ),
        (
            {
                "tools": [
                    {
                        "type": "function",
                        "function": {
                            "name": "f",
                            "strict": True,
                            "parameters": {"type": "object", "not": {"required": ["a"]}},
                        },
                    }
                ]
            },
            "tools[0].function.parameters.not",
            "not",
        ),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    tiny_server: Any, fields: dict[str, Any], param: str, word: str
) -> None:
    for is_streamed in (False, True):
        with pytest.raises(BadRequestError) as caught:
            tiny_server.client.chat.completions.create(
                model="tiny", messages=ASK, stream=is_streamed, extra_body=fields
            )
        assert caught.value.param == param, caught.value.message
        assert word in caught.value.message


def test_the_guides_program_runs(tiny_server: Any, capsys: Any) -> None:
    guide = Path(__file__).parents[1] / "docs/guides/structured-output.md"
    (program,) = re.findall(r"^```python\n(.*?)^```$", guide.read_text(), re.MULTILINE | re.DOTALL)
    scope: dict[str, Any] = {}
    try:
        exec(program.replace("http://127.0.0.1:8000", tiny_server.url), scope)
    finally:
        scope["client"].close()
    assert re.match("city='.*' is_capital=(True|False)", capsys.readouterr().out)


def test_json_and_calls_may_be_alternatives(tiny_server: Any) -> None:
    answers = tiny_server.client.chat.completions.create(
        messages=ASK,
        tools=TOOLS,
        response_format={"type": "json_object"},
        n=6,
        **HOT | {"max_tokens": 120},
    )
    for choice in answers.choices:
        if choice.finish_reason == "stop":
            assert isinstance(json.loads(choice.message.content or ""), dict)
        elif choice.finish_reason == "tool_calls":
            assert choice.message.tool_calls
