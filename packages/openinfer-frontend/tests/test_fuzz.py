"""Invalid input gets a 4xx and has no other effect."""

import asyncio
import json
import random
from copy import deepcopy

import httpx
import pytest

VALID = {
    "/v1/completions": {
        "prompt": "Hi",
        "n": 1,
        "temperature": 0.5,
        "top_k": 3,
        "stop": ["x"],
        "logprobs": 1,
        "stream": False,
        "seed": 1,
        "logit_bias": {"1": 2},
    },
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
        "max_tokens": 4,
        "logprobs": True,
        "top_logprobs": 1,
        "chat_template_kwargs": {"a": 1},
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"a": []}}}],
        "tool_choice": "none",
        "parallel_tool_calls": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    },
    "/v1/chat/completions ": {
        "messages": [
            {"role": "user", "content": "Hi"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
                ],
            },
            {"role": "tool", "tool_call_id": "1", "content": "x"},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"a": []}}}],
    },
    "/v1/responses": {
        "input": [
            {"role": "developer", "content": "Be brief."},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
            {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm"}]},
            {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": "x"},
        ],
        "tools": [{"type": "function", "name": "f", "parameters": {"a": []}}, {"type": "x"}],
        "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"name": "f"}]},
        "text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}}},
        "reasoning": {"effort": "low"},
        "max_output_tokens": 9,
        "metadata": {"a": "b"},
    },
    "/v1/messages": {
        "model": "tiny",
        "max_tokens": 9,
        "system": [{"type": "text", "text": "Be brief."}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm", "signature": ""},
                    {"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "1",
                        "content": [{"type": "text", "text": "x"}],
                    },
                ],
            },
        ],
        "tools": [{"name": "f", "input_schema": {"a": []}}],
        "tool_choice": {"type": "auto"},
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "stop_sequences": ["x"],
        "metadata": {"user_id": "u"},
        "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {}}},
    },
    "/abort_requests": {"request_ids": ["a"]},
    "/tokenize": {"prompt": "Hi", "return_token_strs": True},
    "/detokenize": {"tokens": [1, 2, 3]},
}
ODD = [
    None,
    True,
    -1,
    0,
    2**31,
    2**64,
    -(2**70),
    1e400,
    0.5,
    float("nan"),
    "",
    "x",
    "\ud800",
    "\0",
    [],
    [None],
    [[]],
    [-1],
    ["a", 1],
    {},
    {"a": {"b": []}},
    [{"role": "user"}],
    [{"role": 1, "content": {}}],
]


def mutate(rng, value):
    """Returns a body with one to three faults."""
    for _ in range(rng.randint(1, 3)):
        holder = value
        while True:
            keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
            if not keys:
                break
            key = rng.choice(keys)
            if isinstance(holder[key], dict | list) and holder[key] and rng.random() < 0.6:
                holder = holder[key]
                continue
            if rng.random() < 0.2:
                del holder[key]
            else:
                holder[key] = deepcopy(rng.choice(ODD))
            break
    return value


@pytest.mark.parametrize("path", VALID)
def test_no_body_makes_a_5xx(make_app, tool_text, engine, path):
    rng = random.Random(path)
    app = make_app(engine, text=tool_text)

    async def main():
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            for _ in range(200):
                body = json.dumps(mutate(rng, deepcopy(VALID[path]))).encode()
                if rng.random() < 0.3:
                    cut = rng.randrange(len(body))
                    body = body[:cut] + rng.randbytes(rng.randint(0, 3)) + body[cut + 1 :]
                response = await client.post(path.strip(), content=body)
                assert response.status_code in (200, 400, 404), (body, response.text)
                assert len(response.content) < 5000
                if response.status_code != 200:
                    assert response.json()["error"]["message"]

    asyncio.run(main())
    assert not engine.live
