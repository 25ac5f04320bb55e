"""Tools and reasoning in chat completions, by hand and by the official client."""

import json

import openai
import pytest

from openinfer_contract import Finished, unpack_ids
from openinfer_text import TextModel

TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "description": "Does f.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    },
}
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
TOOLS_ONLY = "{{ tools }}{% for m in messages %}<|im_start|>{{ m.content }}{% endfor %}"
USER = {"role": "user", "content": "Hi"}


@pytest.fixture
def app(engine, make_app, tool_text):
    return make_app(engine, text=tool_text)


def _prompt(engine, text):
    return text.decode(unpack_ids(engine.requests[-1].prompt_token_ids), skip_special_tokens=False)


def test_a_call_is_parsed(client, say, engine, tool_text):
    say(f"Let me see.\n{CALL}")
    (choice,) = client.chat("Hi", tools=[TOOL])["choices"]
    call_id = choice["message"]["tool_calls"][0]["id"]
    assert call_id.startswith("call_")
    assert choice == {
        "index": 0,
        "message": {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [
                {
                    "id": call_id,
                    "type": "function",
                    "function": {"name": "f", "arguments": '{"a": 1}'},
                }
            ],
        },
        "logprobs": None,
        "finish_reason": "tool_calls",
        "stop_reason": None,
    }
    assert _prompt(engine, tool_text).startswith(json.dumps(TOOL) + "\n<|im_start|>user")


def test_content_is_null_beside_calls_alone(client, say):
    say(CALL)
    assert client.chat("Hi", tools=[TOOL])["choices"][0]["message"]["content"] is None


def test_one_event_is_one_chunk(client, say):
    text = f"So {CALL}"
    say(text)
    body = {"messages": [USER], "tools": [TOOL]}
    opening, *events = client.stream("/v1/chat/completions", body)
    choices = [event["choices"][0] for event in events]
    # The fake engine emits all events at once, so they arrive merged into one.
    assert opening["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    (delta,) = (choice["delta"] for choice in choices)
    assert delta["content"] == "So"
    (call,) = delta["tool_calls"]
    assert (call["index"], call["type"], call["function"]) == (
        0, "function", {"name": "f", "arguments": '{"a": 1}'},
    )  # fmt: skip
    assert choices[0]["finish_reason"] == "tool_calls"


def test_a_cut_off_call_ends_by_length(client, say):
    say('<tool_call>\n{"name": "f", "arguments": {"a": ', reason="length")
    (choice,) = client.chat("Hi", tools=[TOOL])["choices"]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"a": '


def test_without_tools_text_is_left_as_it_is(client, say, engine, tool_text):
    say(CALL)
    for fields in ({}, {"tools": []}, {"tools": None, "tool_choice": "auto"}):
        (choice,) = client.chat("Hi", skip_special_tokens=False, **fields)["choices"]
        assert choice["message"] == {"role": "assistant", "content": CALL}
        assert choice["finish_reason"] == "stop"
    (choice,) = client.chat("Hi", tools=[TOOL], tool_choice="none")["choices"]
    assert "tool_calls" not in choice["message"]
    assert '"function"' not in _prompt(engine, tool_text), "the model does not see them either"


def test_parallel_calls_false_keeps_the_first(client, say):
    say(f"{CALL}\n{CALL}")
    assert len(client.chat("Hi", tools=[TOOL])["choices"][0]["message"]["tool_calls"]) == 2
    (choice,) = client.chat("Hi", tools=[TOOL], parallel_tool_calls=False)["choices"]
    assert len(choice["message"]["tool_calls"]) == 1
    assert choice["finish_reason"] == "tool_calls"


def test_every_choice_has_its_own_calls(client, say):
    say(CALL)
    choices = client.chat("Hi", tools=[TOOL], n=3)["choices"]
    ids = {choice["message"]["tool_calls"][0]["id"] for choice in choices}
    assert len(ids) == 3


def test_reasoning_has_both_names(client, say):
    say("<think>\nhm\n</think>\n\nHello")
    (choice,) = client.chat("Hi")["choices"]
    assert choice["message"] == {
        "role": "assistant",
        "content": "Hello",
        "reasoning": "hm",
        "reasoning_content": "hm",
    }
    assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_an_operator_chooses_one_reasoning_name(engine, make_app, client_of, tool_text, say, name):
    say("<think>\nhm\n</think>\n\nHello")
    client = client_of(make_app(engine, text=tool_text, reasoning_field=name))
    (choice,) = client.chat("Hi")["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Hello", name: "hm"}
    lines = client.post(
        "/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "stream": True}
    ).text.splitlines()
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    assert "".join(delta.get(name, "") for delta in deltas) == "hm"
    assert set().union(*deltas) == {"role", "content", name}


def test_reasoning_that_the_prompt_opened(client, say):
    say("hm</think>Hello")
    for thinks, reasoning in ((True, "hm"), (False, None)):
        body = {"messages": [USER], "chat_template_kwargs": {"thinks": thinks}}
        _, *events = client.stream("/v1/chat/completions", body)
        deltas = [event["choices"][0]["delta"] for event in events]
        assert deltas[0].get("reasoning") == deltas[0].get("reasoning_content") == reasoning


def test_logprobs_and_token_ids_are_those_of_all_tokens(client, say, fakes):
    say("ab" + CALL)
    asked = {"tools": [TOOL], "logprobs": True, "return_token_ids": True}
    (choice,) = client.chat("Hi", **asked)["choices"]
    inner = CALL.removeprefix("<tool_call>").removesuffix("</tool_call>").encode()
    assert choice["token_ids"] == [*b"ab", 259, *inner, 260, fakes.IM_END]
    entries = choice["logprobs"]["content"]
    assert len(entries) == len(choice["token_ids"])
    assert entries[2]["token"] == "<tool_call>"


def test_a_history_of_calls_reaches_the_template(client, engine, tool_text):
    function = {"name": "f", "arguments": '{"a":1}'}
    calls = [{"id": "c", "type": "function", "function": function}]
    messages = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c", "content": "7"},
    ]
    response = client.post("/v1/chat/completions", {"messages": messages, "tools": [TOOL]})
    assert response.status_code == 200, response.text
    expected = (
        '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call><|im_end|>\n'
        "<|im_start|>tool\n7<|im_end|>\n<|im_start|>assistant\n"
    )
    assert _prompt(engine, tool_text).endswith(expected)


@pytest.mark.parametrize(
    "call",
    [
        r'{"arguments": {"a": "\ud83d"}, "name": "f"}',
        r'{"name": "f", "arguments": "{\"a\": \"\\ud83d\"}"}',
        r'{"name": "f", "arguments": {"a": "\ud83d"}}',
    ],
)
def test_half_a_surrogate_pair_stays_escaped_also_on_its_way_back(
    client, say, engine, tool_text, call
):
    say(f"<tool_call>{call}</tool_call>")
    (choice,) = client.chat("Hi", tools=[TOOL])["choices"]
    (made,) = choice["message"]["tool_calls"]
    assert made["function"] == {"name": "f", "arguments": r'{"a": "\ud83d"}'}
    _, *events = client.stream("/v1/chat/completions", {"messages": [USER], "tools": [TOOL]})
    deltas = [event["choices"][0]["delta"] for event in events]
    assert [c["function"] for d in deltas for c in d["tool_calls"]] == [made["function"]]
    say("Seven.")
    result = {"role": "tool", "tool_call_id": made["id"], "content": "7"}
    body = {"messages": [USER, choice["message"], result], "tools": [TOOL]}
    assert client.post("/v1/chat/completions", body).is_success
    assert r'"arguments": {"a": "\ud83d"}}' in _prompt(engine, tool_text)


@pytest.mark.parametrize(
    "call",
    [
        r'{"name": "\ud83d", "arguments": {}}',
        r'{"arguments": {}, "name": "\ud83d"}',
        '{"arguments": {"a": NaN}, "name": "f"}',
    ],
)
def test_calls_that_no_response_could_contain_are_content(client, say, call):
    text = f"<tool_call>{call}</tool_call>"
    say(text)
    (choice,) = client.chat("Hi", tools=[TOOL])["choices"]
    assert choice["message"] == {"role": "assistant", "content": text}


def test_tokenize_counts_the_tools(client):
    plain = client.post("/tokenize", {"messages": [USER]}).json()["count"]
    with_tools = client.post("/tokenize", {"messages": [USER], "tools": [TOOL]}).json()["count"]
    assert with_tools - plain == len(json.dumps(TOOL)) + 1


def _tool(**function):
    return {"type": "function", "function": function}


def _called(arguments, **message):
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return {"messages": [USER, {"role": "assistant", "tool_calls": [call]} | message]}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": "f"}, "tools"),
        ({"tools": [1]}, "tools[0]"),
        ({"tools": [TOOL, {"type": "web_search"}]}, "tools[1].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [_tool()]}, "tools[0].function.name"),
        ({"tools": [_tool(name="")]}, "tools[0].function.name"),
        ({"tools": [_tool(name="f", description=1)]}, "tools[0].function.description"),
        ({"tools": [_tool(name="f", parameters="x")]}, "tools[0].function.parameters"),
        ({"tools": [_tool(name="f", strict="yes")]}, "tools[0].function.strict"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "always"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "custom"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function"}}, "tool_choice.function.name"),
        ({"tools": [TOOL], "tool_choice": 1}, "tool_choice"),
        ({"tools": [TOOL], "parallel_tool_calls": "x"}, "parallel_tool_calls"),
        (_called(1), "messages[1].tool_calls[0].function.arguments"),
        (_called([]), "messages[1].tool_calls[0].function.arguments"),
        (
            {"messages": [USER, {"role": "tool", "tool_call_id": 1, "content": "x"}]},
            "messages[1].tool_call_id",
        ),
    ],
)
def test_invalid_tools_are_refused_by_field(client, engine, fields, param):
    response = client.post("/v1/chat/completions", {"messages": [USER]} | fields)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == param
    assert error["message"].startswith(param)
    assert not engine.requests


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "--tool-call-parser"),
        ({"tool_parser": "hermes"}, "does not support tools"),
        ({"chat_template": TOOLS_ONLY, "tool_parser": "none"}, "--tool-call-parser"),
    ],
)
def test_a_model_without_tools_refuses_them(
    engine, make_app, client_of, checkpoint, options, words
):
    model = TextModel.from_folder(checkpoint, **options)
    client = client_of(make_app(engine, text=model))
    body = {"messages": [USER], "tools": [TOOL]}
    error = client.post("/v1/chat/completions", body).json()["error"]
    assert error["param"] == "tools"
    assert words in error["message"]
    assert not engine.requests
    assert client.post("/v1/chat/completions", body | {"tool_choice": "none"}).is_success


def test_tokenize_refuses_tools_that_the_template_would_drop(engine, make_app, client_of, text):
    client = client_of(make_app(engine, text=text))
    response = client.post("/tokenize", {"messages": [USER], "tools": [TOOL]})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "tools")


def test_a_stream_ends_with_the_held_back_text(client, say):
    say("So <tool_c", reason="length")
    _, *events = client.stream("/v1/chat/completions", {"messages": [USER], "tools": [TOOL]})
    choices = [event["choices"][0] for event in events]
    assert "".join(choice["delta"].get("content", "") for choice in choices) == "So <tool_c"
    assert choices[-1]["finish_reason"] == "length"


def test_the_official_client_reads_and_answers_a_call(sdk, say, engine, fakes):
    say(f"Let me see.\n{CALL}\n{CALL}")
    messages = [USER]
    answer = sdk.chat.completions.create(model="tiny", messages=messages, tools=[TOOL])
    message = answer.choices[0].message
    assert [call.function.arguments for call in message.tool_calls] == ['{"a": 1}'] * 2
    messages.append(message.to_dict())
    messages += [
        {"role": "tool", "tool_call_id": call.id, "content": "7"} for call in message.tool_calls
    ]
    say("Seven.")
    answer = sdk.chat.completions.create(model="tiny", messages=messages, tools=[TOOL])
    assert answer.choices[0].message.content == "Seven."
    assert answer.choices[0].finish_reason == "stop"


def test_the_official_client_streams_a_call(sdk, start, make_app, tool_text, fakes):
    """Events reach the client one by one: arguments come in pieces, id and name only once."""
    engine = fakes.FakeEngine()
    server = start(make_app(engine, text=tool_text))
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        engine.script = lambda request: [fakes.scheduled(request.num_prompt_tokens), "<think>a"]
        stream = client.chat.completions.create(
            model="tiny", messages=[USER], tools=[TOOL], stream=True
        )
        deltas = []
        pieces = ["b</think>", f"So {CALL[:11]}", CALL[11:-20], CALL[-20:-14], CALL[-14:]]
        for chunk in stream:
            delta = chunk.choices[0].delta
            if delta.content != "":
                deltas.append(delta)
                if pieces:
                    server.call(engine.emit, pieces.pop(0))
                elif engine.live:
                    server.call(engine.emit, Finished(reason="stop", stop_token_id=fakes.IM_END))
        assert [delta.model_extra.get("reasoning") for delta in deltas[:2]] == ["a", "b"]
        assert [delta.content for delta in deltas if delta.content] == ["So"]
        calls = [delta.tool_calls[0] for delta in deltas if delta.tool_calls]
        assert len(calls) >= 2
        assert {call.index for call in calls} == {0}
        assert [call.function.name for call in calls] == ["f", *[None] * (len(calls) - 1)]
        assert [bool(call.id) for call in calls] == [True, *[False] * (len(calls) - 1)]
        assert "".join(call.function.arguments for call in calls) == '{"a": 1}'
        assert chunk.choices[0].finish_reason == "tool_calls"
