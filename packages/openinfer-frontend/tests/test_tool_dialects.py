"""Parsers receive the request's tools, for types, and its history, for call ids."""

import json

import pytest

from openinfer_contract import unpack_ids
from openinfer_text import TextModel

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}
XML = (
    "<tool_call>\n<function=weather>\n<parameter=city>\nKöln\n</parameter>\n"
    "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"
)
KIMI = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0"
    '<|tool_call_argument_begin|>{"city": "Köln", "days": 3}<|tool_call_end|>'
    "<|tool_calls_section_end|>"
)
MESSAGES = (
    "{{ tools }}{% for m in messages %}<|im_start|>{{ m.role }}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}[{{ c.id }}]{% endfor %}{{ m.tool_call_id }}<|im_end|>"
    "{% endfor %}"
)
TEMPLATES = {
    "qwen3_coder": MESSAGES + "{# <tool_call> <function= <parameter= #}",
    "kimi_k2": MESSAGES + "{# <|tool_calls_section_begin|> #}",
}
CALL = {"id": "call_a", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
HISTORY = [
    {"role": "user", "content": "And in Bonn?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "rain", "tool_call_id": "call_a"},
    {"role": "user", "content": "And in Köln?"},
]


@pytest.fixture
def app(request, engine, make_app, checkpoint):
    text = TextModel.from_folder(checkpoint, chat_template=TEMPLATES[request.param])
    assert text.tool_parser.name == request.param
    return make_app(engine, text=text)


@pytest.mark.parametrize("app", ["qwen3_coder"], indirect=True)
def test_values_have_the_types_of_the_tools(client, say):
    say(XML)
    (choice,) = client.chat("Hi", tools=[TOOL])["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"city": "Köln", "days": 3}
    assert choice["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("app", ["kimi_k2"], indirect=True)
@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
def test_ids_count_over_the_history(client, say, engine, app, is_stream):
    say(KIMI)
    body = {"messages": HISTORY, "tools": [TOOL]}
    if is_stream:
        deltas = [e["choices"][0]["delta"] for e in client.stream("/v1/chat/completions", body)]
        (call,) = (c for delta in deltas for c in delta.get("tool_calls", ()) if "id" in c)
    else:
        (choice,) = client.post("/v1/chat/completions", body).json()["choices"]
        (call,) = choice["message"]["tool_calls"]
    assert (call["id"], call["function"]["name"]) == ("functions.weather:1", "weather")
    ids = unpack_ids(engine.requests[0].prompt_token_ids)
    read = bytes(token_id for token_id in ids if token_id < 256).decode()
    assert "[functions.weather:0]" in read
    assert "rainfunctions.weather:0" in read
    assert "call_a" not in read
