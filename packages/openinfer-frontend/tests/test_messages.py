"""Anthropic's Messages, with the official client and by hand."""

import json
import re
from collections import Counter

import anthropic
import pytest

from openinfer_contract import Failed, Finished, unpack_ids
from openinfer_text import TextModel

TOOL = {
    "name": "f",
    "description": "Does f.",
    "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}},
}
FORM = {"type": "json_schema", "schema": {"type": "object"}}
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
SEARCH = {"type": "web_search_20250305", "name": "web_search"}
ANY = {"type": "any"}
USER = {"role": "user", "content": "Hi"}


@pytest.fixture
def app(engine, make_app, tool_text):
    return make_app(engine, text=tool_text)


@pytest.fixture
def sdk(start, app):
    with anthropic.Anthropic(base_url=start(app).url, api_key="none", max_retries=0) as client:
        yield client


def body(*messages, **fields):
    return {"model": "tiny", "max_tokens": 64, "messages": list(messages or [USER])} | fields


def rendered(engine, text):
    return text.decode(unpack_ids(engine.requests[-1].prompt_token_ids), skip_special_tokens=False)


def test_a_message(sdk, engine, tool_text):
    extra = {"temperature": 0.5, "top_k": 7}
    message = sdk.messages.create(**body(system="Be brief."), extra_body=extra)
    assert [block.text for block in message.content] == ["Hello"]
    assert (message.role, message.model, message.stop_reason) == ("assistant", "tiny", "end_turn")
    assert message.id.startswith("msg_")
    assert (message.usage.cache_read_input_tokens, message.usage.output_tokens) == (3, 6)
    (request,) = engine.requests
    assert message.usage.input_tokens == request.num_prompt_tokens - 3
    assert request.stop.max_tokens == 64
    assert (request.sampling.temperature, request.sampling.top_k) == (0.5, 7)
    assert rendered(engine, tool_text).startswith("<|im_start|>system\nBe brief.<|im_end|>")


def test_a_stream_in_the_documented_order(sdk, engine, say):
    engine.is_paced = True
    say(f"<think>\nHm\n</think>\n\nSee.\n{CALL}{CALL}")
    thinking = {"type": "enabled", "budget_tokens": 1024}
    with sdk.messages.stream(**body(tools=[TOOL], thinking=thinking)) as stream:
        kinds = [event.type for event in stream]
        message = stream.get_final_message()
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    counts = Counter(kinds)
    assert counts["content_block_start"] == counts["content_block_stop"] == 4
    thought, text, first, second = message.content
    assert (thought.type, thought.thinking, thought.signature) == ("thinking", "Hm", "")
    assert (text.type, text.text.strip()) == ("text", "See.")
    assert first.id != second.id
    for call in (first, second):
        assert (call.type, call.name, call.input) == ("tool_use", "f", {"a": 1})
    assert message.stop_reason == "tool_use"
    assert message.usage.output_tokens_details.thinking_tokens == 6, "Hm and what closes it"


@pytest.mark.parametrize("is_paced", [False, True])
def test_the_stream_equals_the_whole_response(client, engine, say, is_paced):
    engine.is_paced = is_paced
    say(f"<think>Hm</think>See.{CALL}")
    request = body(tools=[TOOL], thinking={"type": "adaptive"})
    whole = client.post("/v1/messages", request).json()
    response = client.post("/v1/messages", request | {"stream": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    events = [part.split("\n") for part in response.text.removesuffix("\n\n").split("\n\n")]
    datas = [json.loads(data.removeprefix("data: ")) for _, data in events]
    # Clients such as the Vercel AI SDK accept a list or an absent field, and fail at null.
    assert "citations" not in response.text
    assert all("citations" not in block for block in whole["content"])
    assert [name.removeprefix("event: ") for name, _ in events] == [d["type"] for d in datas]
    assert "[DONE]" not in response.text
    blocks = {}
    for data in datas:
        if data["type"] == "content_block_start":
            assert data["index"] == len(blocks)
            blocks[data["index"]] = ""
        if data["type"] == "content_block_delta":
            delta = data["delta"]
            blocks[data["index"]] += "".join(
                delta.get(key, "") for key in ("text", "thinking", "partial_json")
            )
    thought, text, call = whole["content"]
    assert list(blocks.values()) == [thought["thinking"], text["text"], '{"a": 1}']
    assert call["input"] == {"a": 1}
    assert datas[-2]["usage"] == whole["usage"]
    assert datas[-2]["delta"]["stop_reason"] == whole["stop_reason"] == "tool_use"


def test_white_space_makes_no_block(client, say):
    say(f"<think>Hm</think>\n\n{CALL}\n")
    answer = client.post("/v1/messages", body(tools=[TOOL])).json()
    assert [block["type"] for block in answer["content"]] == ["thinking", "tool_use"]
    say("<think>Hm</think>\n \n")
    answer = client.post("/v1/messages", body()).json()
    assert [block["type"] for block in answer["content"]] == ["thinking"]


def test_a_stop_sequence_is_named(client, say):
    say("one two three")
    answer = client.post("/v1/messages", body(stop_sequences=["two"])).json()
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "two")
    assert answer["content"][0]["text"] == "one "


def test_a_response_that_was_cut_off(client, say):
    say(CALL[:40], reason="length")
    answer = client.post("/v1/messages", body(tools=[TOOL])).json()
    assert answer["stop_reason"] == "max_tokens"
    assert answer["content"][0]["input"] == {}


def test_billing_headers_are_dropped(client, engine, tool_text):
    system = [
        {"type": "text", "text": "x-anthropic-billing-header: cch=12345;"},
        {"type": "text", "text": "You are a tool.", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "Be brief."},
    ]
    assert client.post("/v1/messages", body(system=system)).status_code == 200
    prompt = rendered(engine, tool_text)
    assert prompt.startswith("<|im_start|>system\nYou are a tool.\n\nBe brief.<|im_end|>")


def test_a_history_with_tools(client, engine, tool_text):
    messages = [
        USER,
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm", "signature": ""},
                {"type": "redacted_thinking", "data": "xyz"},
                {"type": "text", "text": "See."},
                {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 2}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "three"},
                {"type": "text", "text": "And now?"},
            ],
        },
    ]
    server_tool = {"type": "web_search_20250305", "name": "web_search"}
    response = client.post("/v1/messages", body(*messages, tools=[server_tool, TOOL]))
    assert response.status_code == 200, response.text
    prompt = rendered(engine, tool_text)
    assert '<|im_start|>assistant\nSee.<tool_call>{"name": "f", "arguments": {"a": 2}}' in prompt
    assert "<|im_start|>tool\nthree<|im_end|>\n<|im_start|>user\nAnd now?<|im_end|>" in prompt
    assert "web_search" not in prompt


def test_an_assistants_last_message_is_continued(client, engine, tool_text):
    prefill = {"role": "assistant", "content": [{"type": "text", "text": "Well,"}]}
    assert client.post("/v1/messages", body(USER, prefill)).status_code == 200
    assert rendered(engine, tool_text).endswith("assistant\nWell,")


@pytest.mark.parametrize(
    ("fields", "is_thinking"),
    [
        ({}, False),
        ({"thinking": {"type": "disabled"}}, False),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, True),
        ({"chat_template_kwargs": {"enable_thinking": True}}, True),
    ],
)
def test_thinking_is_off_unless_asked_for(
    client_of, make_app, engine, checkpoint, fields, is_thinking
):
    template = "{{ messages[0].content }} {{ enable_thinking }}"
    text = TextModel.from_folder(checkpoint, chat_template=template)
    client = client_of(make_app(engine, text=text))
    response = client.post("/v1/messages", body(**fields))
    assert response.status_code == 200, response.text
    assert rendered(engine, text) == f"Hi {is_thinking}"


def test_tokens_are_counted(sdk, engine):
    counted = sdk.messages.count_tokens(model="tiny", messages=[USER], tools=[TOOL])
    sdk.messages.create(**body(tools=[TOOL]))
    assert counted.input_tokens == engine.requests[0].num_prompt_tokens


def test_the_error_for_a_long_prompt_has_the_words_that_agents_look_for(client):
    long = {"role": "user", "content": "x" * 600}
    told = client.post("/v1/messages", body(long)).json()["error"]["message"]
    assert re.search(r"prompt is too long: \d+ tokens", told)
    assert "maximum context length is 512 tokens" in told


def test_a_chats_fields_are_unknown_here(client, engine):
    fields = {"n": 4, "min_p": 7, "seed": "x", "logit_bias": 3, "stop": 1, "service_tier": "auto"}
    response = client.post("/v1/messages", body(**fields))
    assert response.status_code == 200, response.text
    (request,) = engine.requests
    assert (request.sampling.seed, request.sampling.min_p) == (None, 0.0)


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "boss", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "content[0].type"),
        ({"temperature": -1}, "temperature"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format"),
        ({"priority": "x"}, "priority"),
        ({"messages": [{"role": "boss", "content": "x"}]}, "messages[0].role:"),
        ({"messages": [{"role": "user", "content": [3]}]}, "messages[0].content[0]:"),
        ({"messages": [{"role": "user"}]}, "messages[0].content:"),
        ({"messages": [USER, {"role": "assistant", "content": ""}]}, "messages:"),
        ({"thinking": {"type": "much"}}, "thinking.type:"),
        ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens:"),
        ({"output_config": {"effort": "much"}}, "output_config.effort:"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema:"),
        ({"cache_salt": ""}, "cache_salt:"),
        ({"stop_sequences": ["a"] * 65}, "stop_sequences:"),
        ({"tools": [SEARCH, TOOL | {"name": ""}]}, "tools[1].name:"),
        ({"tools": [SEARCH, TOOL | {"strict": 1}]}, "tools[1].strict:"),
        ({"tools": [SEARCH, TOOL | {"description": 1}]}, "tools[1].description:"),
        (
            {"tools": [SEARCH, TOOL | {"input_schema": {"type": "null"}}], "tool_choice": ANY},
            "tools[1].input_schema.type:",
        ),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice.name:"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name:"),
        ({"tools": [TOOL], "tool_choice": {"type": "all"}}, "tool_choice.type:"),
        (
            {
                "tools": [TOOL],
                "tool_choice": ANY,
                "output_config": {"format": {"type": "json_schema", "schema": {}}},
            },
            "together with output_config.format",
        ),
    ],
)
def test_bad_input_names_the_field(client, engine, wrong, word):
    response = client.post("/v1/messages", body(**wrong))
    assert response.status_code == 400, response.text
    error = response.json()
    assert (error["type"], error["error"]["type"]) == ("error", "invalid_request_error")
    assert word in error["error"]["message"]
    assert error["request_id"] == response.headers["x-request-id"]
    assert not engine.requests


def test_errors_have_the_protocols_shape(sdk, engine):
    with pytest.raises(anthropic.NotFoundError, match="does not exist"):
        sdk.messages.create(**body(model="nope"))
    engine.dead = "the engine is restarting"
    with pytest.raises(anthropic.APIStatusError) as caught:
        sdk.messages.create(**body())
    assert caught.value.status_code == 503
    assert caught.value.body["error"]["type"] == "overloaded_error"


def test_a_stream_that_fails_ends_with_an_error(sdk, engine, fakes):
    engine.script = lambda request: [
        fakes.scheduled(request.num_prompt_tokens),
        "He",
        Failed(message="the device is gone"),
    ]
    # The fake engine's text and failure are merged into one event, so the failure comes before the
    # first byte and has its own status.
    with pytest.raises(anthropic.InternalServerError, match="the device is gone"):
        sdk.messages.create(**body(stream=True))


@pytest.mark.parametrize(
    ("route", "fields", "param"),
    [
        ("messages", {"output_config": {"format": FORM}}, "output_config.format.schema"),
        ("responses", {"input": "Hi", "text": {"format": FORM}}, "text.format.schema"),
    ],
)
def test_an_error_within_a_stream_names_the_clients_field(
    client, engine, fakes, route, fields, param
):
    engine.is_paced = True
    engine.script = lambda request: [
        fakes.scheduled(request.num_prompt_tokens),
        "He",
        Failed(message="takes too long", field="grammar"),
    ]
    response = client.post(f"/v1/{route}", body(stream=True, **fields))
    assert response.status_code == 200
    assert f'"{param}: takes too long"' in response.text
    if route == "messages":
        assert f'"request_id":"{response.headers["x-request-id"]}"' in response.text


def test_models_are_listed_for_both_clients(sdk):
    models = sdk.models.list()
    assert [(m.id, m.type, m.display_name) for m in models] == [
        ("tiny", "model", "tiny"),
        ("other", "model", "other"),
    ]
    assert sdk.models.retrieve("tiny").created_at.year > 2020


def test_a_call_can_be_forced(client, engine, say):
    say(CALL)
    choice = {"type": "tool", "name": "f", "disable_parallel_tool_use": True}
    response = client.post("/v1/messages", body(tools=[TOOL], tool_choice=choice))
    assert response.status_code == 200, response.text
    assert engine.requests[0].grammar is not None
    assert response.json()["stop_reason"] == "tool_use"
    say(CALL.partition("1}")[0])
    cut_off = client.post("/v1/messages", body(tools=[TOOL], tool_choice=choice))
    assert cut_off.json()["stop_reason"] == "end_turn"
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    wanted = {"format": {"type": "json_schema", "schema": schema}}
    assert client.post("/v1/messages", body(output_config=wanted)).status_code == 200
    assert json.loads(engine.requests[-1].grammar.text) == schema


def test_an_aborted_message_is_an_error(client, engine, fakes):
    engine.script = lambda request: [
        fakes.scheduled(request.num_prompt_tokens),
        "He",
        Finished(reason="abort"),
    ]
    response = client.post("/v1/messages", body())
    assert (response.status_code, "aborted" in response.text) == (400, True)


@pytest.mark.parametrize("is_refused", [True, False])
def test_system_messages_in_the_middle(checkpoint, make_app, engine, client_of, is_refused):
    """Claude Code sends late system messages, and many templates refuse them; they become user
    text."""
    refusal = (
        "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
        "{{ raise_exception('the system comes first') }}{% endif %}{% endfor %}"
    )
    turns = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    template = refusal * is_refused + turns
    text = TextModel.from_folder(checkpoint, chat_template=template)
    client = client_of(make_app(engine, text=text))
    said = [
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        {"role": "system", "content": "Note"},
        {"role": "assistant", "content": "Yes?"},
        {"role": "system", "content": "Again"},
        {"role": "user", "content": "So"},
    ]
    fields = body(system="First", messages=said)
    response = client.post("/v1/messages", fields)
    assert response.status_code == 200, response.text
    given = [{"role": m["role"], "content": m["content"]} for m in said]
    response = client.post("/v1/responses", {"instructions": "First", "input": given[1:]})
    assert response.status_code == 200
    assert client.post("/v1/messages/count_tokens", fields).status_code == 200
    prompt = bytes(unpack_ids(engine.requests[0].prompt_token_ids)).decode()
    roles = re.findall(r"\[(\w+)\]", prompt)
    if is_refused:
        assert roles == ["system", "user", "assistant", "user"], prompt
        assert "Hi\nNote" in prompt
        assert "Again\nSo" in prompt
    else:
        assert roles == ["system", "user", "system", "assistant", "system", "user"], prompt
    chat = client.post("/v1/chat/completions", {"messages": given})
    assert chat.status_code == (400 if is_refused else 200), "a chat says what it means"
