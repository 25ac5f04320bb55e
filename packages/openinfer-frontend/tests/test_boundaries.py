"""The ends of messages reach the engine from every endpoint that takes conversations."""

import itertools

import httpx
import pytest

from openinfer_contract import unpack_ids

FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": {}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CHAT = {
    "model": "tiny",
    "tools": [{"type": "function", "function": FUNCTION}],
    "messages": [
        {"role": "system", "content": "Be <brief>."},
        {"role": "user", "content": "Größe?"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "1", "tool_call_id": "c1"},
    ],
}
RESPONSES = {
    "model": "tiny",
    "instructions": "Be <brief>.",
    "tools": [{"type": "function", **FUNCTION}],
    "input": [
        {"role": "user", "content": "Größe?"},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "1"},
    ],
}
MESSAGES = {
    "model": "tiny",
    "max_tokens": 9,
    "system": "Be <brief>.",
    "tools": [{"name": "f", "input_schema": FUNCTION["parameters"]}],
    "messages": [
        {"role": "user", "content": "Größe?"},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "c1", "name": "f", "input": {}}],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "1"}],
        },
    ],
}


@pytest.mark.parametrize(
    ("path", "body"),
    [("chat/completions", CHAT), ("responses", RESPONSES), ("messages", MESSAGES)],
    ids=["chat", "responses", "messages"],
)
@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
def test_the_ends_of_messages_are_hints(engine, make_app, start, tool_text, path, body, is_stream):
    url = start(make_app(engine, text=tool_text)).url
    answer = httpx.post(f"{url}/v1/{path}", json={**body, "stream": is_stream})
    assert answer.status_code == 200, answer.text
    (request,) = engine.requests
    ids = unpack_ids(request.prompt_token_ids)
    bounds = [0, *unpack_ids(request.cache.boundaries), len(ids)]
    parts = [
        tool_text.decode(ids[begin:end], skip_special_tokens=False)
        for begin, end in itertools.pairwise(bounds)
    ]
    tools, *messages, opened = parts
    roles = [message.split("\n")[0].removeprefix("<|im_start|>") for message in messages]
    assert roles == ["system", "user", "assistant", "tool"]
    assert tools.endswith("}\n")
    assert all(message.endswith("<|im_end|>\n") for message in messages)
    assert "Größe?" in messages[1]
    assert "<tool_call>" in messages[2]
    assert opened == "<|im_start|>assistant\n"
