"""OpenAI's Responses, with the official client and by hand."""

import json

import openai
import pytest

from openinfer_contract import Failed, Finished, unpack_ids
from openinfer_frontend.protocols._json import to_json
from openinfer_frontend.protocols.responses import _responses_format

TOOL = {
    "type": "function",
    "name": "f",
    "description": "Does f.",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    "strict": False,
}
SEARCH = {"type": "web_search"}
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
ROUTE = "/v1/responses"


@pytest.fixture
def app(engine, make_app, tool_text):
    return make_app(engine, text=tool_text)


def rendered(engine, text):
    return text.decode(unpack_ids(engine.requests[-1].prompt_token_ids), skip_special_tokens=False)


def events_of(client, body):
    response = client.post(ROUTE, body | {"stream": True})
    assert response.status_code == 200, response.text
    assert "[DONE]" not in response.text
    parts = [part.split("\n") for part in response.text.removesuffix("\n\n").split("\n\n")]
    events = [json.loads(data.removeprefix("data: ")) for _, data in parts]
    assert [name.removeprefix("event: ") for name, _ in parts] == [e["type"] for e in events]
    assert [e["sequence_number"] for e in events] == list(range(len(events)))
    return events


def test_a_response(sdk, engine, tool_text):
    response = sdk.responses.create(
        model="tiny",
        input="Hi",
        instructions="Be brief.",
        max_output_tokens=9,
        temperature=0.5,
        metadata={"a": "b"},
        prompt_cache_key="talk-1",
        reasoning={"effort": "low", "summary": "auto"},
    )
    assert response.output_text == "Hello"
    assert (response.status, response.model, response.store) == ("completed", "tiny", False)
    assert response.id.startswith("resp_")
    assert response.metadata == {"a": "b"}
    usage = response.usage
    assert (usage.input_tokens_details.cached_tokens, usage.output_tokens) == (3, 6)
    assert usage.output_tokens_details.reasoning_tokens == 0
    (request,) = engine.requests
    assert (request.stop.max_tokens, request.session_id) == (9, "talk-1")
    assert request.sampling.temperature == 0.5
    prompt = rendered(engine, tool_text)
    assert prompt.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi")


def test_every_event_of_a_text_and_its_order(client):
    events = events_of(client, {"input": "Hi"})
    assert [event["type"] for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    added, part, delta, done, part_done, item_done, completed = events[2:]
    assert added["item"]["status"] == "in_progress"
    assert added["item"]["content"] == []
    assert part["part"]["text"] == ""
    assert delta["delta"] == done["text"] == part_done["part"]["text"] == "Hello"
    assert item_done["item"]["status"] == "completed"
    assert completed["response"]["output"] == [item_done["item"]]
    assert completed["response"]["usage"]["output_tokens"] == 6
    assert {e["item_id"] for e in (part, delta, done, part_done)} == {added["item"]["id"]}


def test_reasoning_text_and_calls_are_items(client, engine, say):
    engine.is_paced = True
    say(f"<think>\nHm\n</think>\n\nSee.\n{CALL}{CALL}")
    body = {"input": "Hi", "tools": [TOOL]}
    events = events_of(client, body)
    kinds = [event["type"] for event in events if not event["type"].endswith("delta")]
    reasoning = ["response.reasoning_text.done", "response.content_part.done"]
    call = [
        "response.output_item.added",
        "response.function_call_arguments.done",
        "response.output_item.done",
    ]
    opening = ["response.output_item.added", "response.content_part.added"]
    assert kinds == [
        "response.created",
        "response.in_progress",
        *opening,
        *reasoning,
        "response.output_item.done",
        *opening,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        *call,
        *call,
        "response.completed",
    ]
    output = events[-1]["response"]["output"]
    assert [item["type"] for item in output] == [
        "reasoning",
        "message",
        "function_call",
        "function_call",
    ]
    assert [event["item"] for event in events if event["type"].endswith("item.done")] == output
    assert output[0]["content"][0]["text"] == "Hm"
    assert output[2]["arguments"] == '{"a": 1}'
    assert output[2]["call_id"] != output[3]["call_id"]
    deltas = {}
    for event in events:
        if event["type"].endswith(".delta"):
            deltas.setdefault(event["output_index"], []).append(event["delta"])
    assert len(deltas[2]) > 1, "arguments are streamed"
    assert "".join(deltas[2]) == '{"a": 1}'
    whole = client.post(ROUTE, body).json()
    texts = [[item.get(k) for k in ("type", "name", "arguments", "status")] for item in output]
    assert texts == [
        [item.get(k) for k in ("type", "name", "arguments", "status")] for item in whole["output"]
    ]
    assert whole["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    assert whole["usage"] == events[-1]["response"]["usage"]


def test_the_sdk_streams(sdk, say):
    say(f"See.{CALL}")
    with sdk.responses.stream(model="tiny", input="Hi", tools=[TOOL]) as stream:
        seen = {event.type for event in stream}
        response = stream.get_final_response()
    assert "response.function_call_arguments.done" in seen
    message, call = response.output
    assert message.content[0].text == "See."
    assert (call.name, call.arguments) == ("f", '{"a": 1}')


def test_a_history_of_items(client, engine, tool_text):
    items = [
        {"role": "developer", "content": "Use tools."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}]},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "See.", "annotations": []}],
        },
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": 1}'},
        {"type": "function_call", "call_id": "c2", "name": "f", "arguments": '{"a": 2}'},
        {"type": "function_call_output", "call_id": "c1", "output": "one"},
        {
            "type": "function_call_output",
            "call_id": "c2",
            "output": [{"type": "input_text", "text": "two"}],
        },
        {"type": "reasoning", "summary": [], "content": None, "encrypted_content": "x"},
        {"type": "reasoning", "summary": [], "encrypted_content": "x"},
        {"role": "user", "content": "Go on."},
    ]
    others = [{"type": "web_search"}, {"type": "local_shell"}, {"type": "custom", "name": "x"}]
    body = {"instructions": "Be brief.", "input": items, "tools": [*others, TOOL]}
    response = client.post(ROUTE, body)
    assert response.status_code == 200, response.text
    prompt = rendered(engine, tool_text)
    tools, _, chat = prompt.partition("\n")
    assert "web_search" not in tools
    assert chat == (
        "<|im_start|>system\nBe brief.\n\nUse tools.<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n"
        '<|im_start|>assistant\nSee.<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
        '<tool_call>{"name": "f", "arguments": {"a": 2}}</tool_call><|im_end|>\n'
        "<|im_start|>tool\none<|im_end|>\n<|im_start|>tool\ntwo<|im_end|>\n"
        "<|im_start|>user\nGo on.<|im_end|>\n<|im_start|>assistant\n"
    )
    assert response.json()["tools"] == body["tools"]


def test_an_incomplete_response(client, say):
    say("Hello", reason="length")
    events = events_of(client, {"input": "Hi"})
    assert events[-1]["type"] == "response.incomplete"
    response = events[-1]["response"]
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["output"][0]["status"] == "incomplete"


def test_logprobs(client):
    include = ["message.output_text.logprobs", "reasoning.encrypted_content"]
    body = {"input": "Hi", "include": include, "top_logprobs": 2}
    part = client.post(ROUTE, body).json()["output"][0]["content"][0]
    assert [entry["token"] for entry in part["logprobs"][:5]] == list("Hello")
    assert len(part["logprobs"][0]["top_logprobs"]) == 2
    assert client.post(ROUTE, {"input": "Hi"}).json()["output"][0]["content"][0]["logprobs"] == []


@pytest.mark.parametrize("is_stream", [True, False])
def test_blank_tokens_that_open_a_text_keep_their_logprobs(client, engine, is_stream):
    engine.is_paced = True
    engine.script = lambda _: ["\n", "\n", "Hello", Finished(reason="stop")]
    body = {"input": "Hi", "include": ["message.output_text.logprobs"]}
    if is_stream:
        response = events_of(client, body)[-1]["response"]
    else:
        response = client.post(ROUTE, body).json()
    (part,) = response["output"][0]["content"]
    assert part["text"] == "\n\nHello"
    assert "".join(entry["token"] for entry in part["logprobs"]) == "\n\nHello"


def test_an_end_of_text_is_ignored_on_demand(client, engine):
    client.post(ROUTE, {"input": "Hi", "ignore_eos": True, "max_output_tokens": 3})
    assert engine.requests[-1].stop.ignore_eos
    refused = client.post(ROUTE, {"input": "Hi", "ignore_eos": 3})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "ignore_eos")


def test_logprobs_are_spelled_once(client, engine, monkeypatch):
    """Every `done` event repeats the logprobs of its deltas."""
    spelled = []

    def spell(value):
        spelled.append(repr(value).count("'bytes'"))
        return to_json(value)

    monkeypatch.setattr(_responses_format, "to_json", spell)
    engine.is_paced = True
    engine.script = lambda _: [*"Hello", Finished(reason="stop")]
    body = {"input": "Hi", "include": ["message.output_text.logprobs"]}
    events = events_of(client, body)
    assert sum(spelled) == len("Hello")
    wanted = [entry for e in events for entry in e.get("logprobs", ()) if "delta" in e]
    assert [entry["token"] for entry in wanted] == list("Hello")
    by_type = {event["type"]: event for event in events}
    item = by_type["response.output_item.done"]["item"]
    assert by_type["response.output_text.done"]["logprobs"] == wanted
    assert by_type["response.content_part.done"]["part"]["logprobs"] == wanted
    assert item["content"][0]["logprobs"] == wanted
    assert by_type["response.completed"]["response"]["output"] == [item]


def test_forms_and_choices(client, engine, say):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    form = {"type": "json_schema", "name": "x", "schema": schema, "strict": True}
    assert client.post(ROUTE, {"input": "Hi", "text": {"format": form}}).status_code == 200
    assert json.loads(engine.requests[-1].grammar.text) == schema
    say(CALL)
    other = TOOL | {"name": "g"}
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"name": "f"}]}
    body = {"input": "Hi", "tools": [TOOL, other], "tool_choice": choice}
    assert client.post(ROUTE, body).status_code == 200
    assert '"g"' not in engine.requests[-1].grammar.text
    choice = {"type": "function", "name": "g"}
    assert client.post(ROUTE, body | {"tool_choice": choice}).status_code == 200
    assert '"g"' in engine.requests[-1].grammar.text or "g" in engine.requests[-1].grammar.text


def test_an_engine_without_logprobs_is_refused_with_our_message(make_app, fakes, client_of):
    engine = fakes.FakeEngine(honoured=(), max_logprobs=0)
    response = client_of(make_app(engine)).post(ROUTE, {"input": "Hi", "top_logprobs": 3})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "top_logprobs")
    assert error["message"] == "top_logprobs is not supported by this engine (fake)"


def test_errors_list_every_form_that_a_field_takes(client):
    message = client.post(ROUTE, {"input": 3}).json()["error"]["message"]
    assert message == "input: must be a string or a list"


def test_a_chats_fields_are_unknown_here(client, engine):
    fields = {"n": 4, "logit_bias": 3, "stop": 1, "presence_penalty": 9, "service_tier": "auto"}
    response = client.post(ROUTE, {"input": "Hi"} | fields)
    assert response.status_code == 200, response.text
    (request,) = engine.requests
    assert (request.sampling.presence_penalty, request.sampling.logit_bias) == (0.0, ())


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"input": []}, "input"),
        ({"input": [{"type": "mystery"}]}, "input[0].type"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].arguments"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, None),
        ({"input": [{"role": "boss", "content": "x"}]}, "input[0].role"),
        ({"input": "x" * 600}, "input"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice.type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"top_logprobs": 99}, "top_logprobs"),
        ({"top_logprobs": 1, "logprobs_mode": "logits"}, "logprobs_mode"),
        ({"logprobs_mode": "processed"}, "logprobs_mode"),
        ({"reasoning": {"effort": "much"}}, "reasoning.effort"),
        ({"input": [3]}, "input[0]"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"tools": [SEARCH, TOOL | {"name": ""}]}, "tools[1].name"),
        ({"tools": [SEARCH, TOOL | {"strict": 1}]}, "tools[1].strict"),
        ({"tools": [SEARCH, TOOL | {"parameters": 1}]}, "tools[1].parameters"),
        (
            {"tools": [TOOL | {"parameters": {"type": "null"}}], "tool_choice": "required"},
            "tools[0].parameters.type",
        ),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "function"}}, "tool_choice.name"),
        (
            {
                "tools": [TOOL, SEARCH, TOOL | {"name": "g", "strict": 1}],
                "tool_choice": {"type": "allowed_tools", "tools": [{"name": "g"}]},
            },
            "tools[2].strict",
        ),
        ({"text": {"format": 3}}, "text.format"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
    ],
)
def test_bad_input_names_the_field(client, engine, wrong, param):
    response = client.post(ROUTE, {"input": "Hi"} | wrong)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    param = param or "input[0].content[0].type"
    assert error["param"] == param
    assert param == "input" or param in error["message"]
    assert error["param"] in error["message"] or "prompt" in error["message"]
    assert not engine.requests


def test_the_sdk_sees_openai_errors(sdk):
    with pytest.raises(openai.NotFoundError) as caught:
        sdk.responses.create(model="nope", input="Hi")
    assert caught.value.param == "model"


@pytest.mark.parametrize("name", ["metadata", "tools", "tool_choice", "text"])
def test_repeated_fields_can_be_encoded(client, name):
    body = '{"input": "Hi", "%s": {"a": 1e999}}' % name  # noqa: UP031 - braces
    response = client.request("POST", ROUTE, content=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, name)


def test_items_cut_off_by_a_failure_are_incomplete(make_app, fakes, client_of):
    engine = fakes.FakeEngine()
    engine.is_paced = True
    late = Failed(message="the deadline passed", is_retryable=False, field="deadline")
    engine.script = lambda request: [fakes.scheduled(request.num_prompt_tokens), "Hel", late]
    body = {"input": "Hi", "stream": True, "deadline_ms": 1000}
    text = client_of(make_app(engine)).post("/v1/responses", body).text
    (last,) = (line[6:] for line in text.splitlines() if '"response.failed"' in line)
    response = json.loads(last)["response"]
    assert [item["status"] for item in response["output"]] == ["incomplete"]
    assert "deadline" in response["error"]["message"]
