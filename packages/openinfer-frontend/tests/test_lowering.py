"""Every field reaches the engine, or is refused by name before the prompt is tokenised."""

import re

import pytest

from openinfer_contract import FEATURES, Finished, Sampling, StopRules, unpack_ids


def test_every_sampling_field_is_lowered(client, engine):
    client.complete(
        "Hi",
        temperature=0.5,
        top_k=4,
        top_p=0.9,
        min_p=0.1,
        seed=7,
        repetition_penalty=1.1,
        presence_penalty=0.2,
        frequency_penalty=0.3,
        logit_bias={"5": -100, "6": 1.5},
        allowed_token_ids=[5, 6],
        bad_words=["ab"],
    )
    sampling = engine.requests[0].sampling
    assert sampling == Sampling(
        temperature=0.5,
        top_k=4,
        top_p=0.9,
        min_p=0.1,
        seed=7,
        repetition_penalty=1.1,
        presence_penalty=0.2,
        frequency_penalty=0.3,
        logit_bias=((5, -100.0), (6, 1.5)),
        allowed_token_ids=sampling.allowed_token_ids,
        bad_words=sampling.bad_words,
    )
    assert unpack_ids(sampling.allowed_token_ids) == [5, 6]
    assert [unpack_ids(word) for word in sampling.bad_words] == [[97, 98], [32, 97, 98]]


def test_other_fields_are_lowered(client, engine, fakes):
    client.request(
        "POST",
        "/v1/completions",
        json={
            "prompt": "Hi",
            "max_tokens": 9,
            "min_tokens": 2,
            "stop_token_ids": [65],
            "cache_salt": "pepper",
            "priority": -3,
            "logprobs": 5,
        },
        headers={"X-Session-ID": "s1", "traceparent": "00-a-b-01", "X-Request-Id": "r1"},
    )
    (request,) = engine.requests
    # The checkpoint has an end-of-text id that the engine does not know.
    stop_ids = (65, fakes.END_OF_TEXT)
    assert request.stop == StopRules(max_tokens=9, min_tokens=2, stop_token_ids=stop_ids)
    assert request.cache.salt == b"pepper"
    assert request.priority == -3
    assert request.logprobs.num_top == 5
    assert (request.session_id, request.trace_parent) == ("s1", "00-a-b-01")
    assert request.request_id == "cmpl-r1"


@pytest.mark.parametrize(
    ("body", "headers", "expected"),
    [
        ({}, {}, ("", "")),
        ({"user": "u", "session_id": "s"}, {}, ("u", "s")),
        ({"user": None, "session_id": None}, {}, ("", "")),
        ({}, {"X-Tenant-ID": "t", "X-Session-ID": "h"}, ("t", "h")),
        (
            {"user": "u", "session_id": "s"},
            {"X-Tenant-ID": "t", "X-Session-ID": "h"},
            ("t", "h"),
        ),
    ],
)
def test_tenant_and_session_come_from_headers_and_body(client, engine, body, headers, expected):
    """Headers, which a gateway can set, are preferred over the client's fields."""
    client.request("POST", "/v1/completions", json={"prompt": "Hi", "n": 2} | body, headers=headers)
    assert [(r.tenant, r.session_id) for r in engine.requests] == [expected] * 2


def test_a_session_is_as_long_in_a_header_as_in_a_body(client, engine):
    for size, status in ((512, 200), (513, 400)):
        headers = {"X-Session-ID": "s" * size}
        answers = [
            client.request("POST", "/v1/completions", json={"prompt": "Hi"}, headers=headers),
            client.post("/v1/completions", {"prompt": "Hi", "session_id": "s" * size}),
        ]
        assert [answer.status_code for answer in answers] == [status] * 2
    assert [a.json()["error"]["param"] for a in answers] == ["X-Session-ID", "session_id"]


@pytest.mark.parametrize(
    ("body", "header", "expected"),
    [({}, "7", 7), ({"priority": 3}, "-2147483648", -(2**31)), ({"priority": 3}, "+0", 0)],
)
def test_a_gateway_sets_the_priority(client, engine, body, header, expected):
    headers = {"X-Vllm-Priority": header}
    client.request("POST", "/v1/completions", json={"prompt": "Hi"} | body, headers=headers)
    assert [r.priority for r in engine.requests] == [expected]


@pytest.mark.parametrize(
    ("path", "body"), [("/v1/completions", {"prompt": "Hi"}), ("/v1/responses", {"input": "Hi"})]
)
@pytest.mark.parametrize("header", ["", "high", "1.5", "2147483648", "9" * 5000, "1_0", "\u0661"])
def test_a_priority_that_is_no_integer_is_refused(client, engine, path, body, header):
    headers = {"X-Vllm-Priority": header.encode()}
    response = client.request("POST", path, json=body, headers=headers)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "X-Vllm-Priority")
    assert not engine.requests


@pytest.mark.parametrize(
    ("fields", "param"), [({"prompt": ["Hi"] * 1025}, "prompt"), ({"prompt": "Hi", "n": 1025}, "n")]
)
def test_too_many_sequences_name_the_field(client, engine, fields, param):
    response = client.post("/v1/completions", fields)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert not engine.requests


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"prompt": ["Hi"] * 4}, "prompt", "at most 3 .*--max-num-queued-reqs"),
        ({"prompt": "Hi", "n": 4}, "n", "at most 3 .*--max-num-queued-reqs"),
        ({"prompt": [[5] * 9, [6] * 12]}, "prompt", "21 tokens.* 20 .*--max-num-queued-tokens"),
        ({"prompt": [5] * 7, "n": 3}, "prompt", "21 tokens.* 20 .*--max-num-queued-tokens"),
    ],
)
def test_requests_larger_than_the_queue_are_not_retryable(
    fakes, make_app, client_of, fields, param, words
):
    engine = fakes.FakeEngine(max_queued_requests=3, max_queued_tokens=20)
    response = client_of(make_app(engine)).post("/v1/completions", fields)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param)
    assert re.search(words, error["message"])
    assert not engine.requests


@pytest.mark.parametrize("fields", [{"prompt": ["a"] * 3}, {"prompt": [5] * 21}])
def test_requests_that_fit_an_empty_queue_are_submitted(fakes, make_app, client_of, fields):
    engine = fakes.FakeEngine(max_queued_requests=3, max_queued_tokens=20)
    engine.script = fakes.hello
    assert client_of(make_app(engine)).post("/v1/completions", fields).status_code == 200


@pytest.mark.parametrize("value", [3, "x" * 513])
def test_a_session_is_a_short_text(client, engine, value):
    response = client.post("/v1/completions", {"prompt": "Hi", "session_id": value})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "session_id")
    assert not engine.requests


@pytest.mark.parametrize("value", [3, "x" * 513, {"id": 1}])
def test_a_user_that_is_not_a_short_text_names_no_tenant(client, engine, value):
    """Other servers ignore the field, so clients send all kinds of values."""
    client.complete("Hi", user=value)
    assert [r.tenant for r in engine.requests] == [""]


def test_defaults_come_from_the_checkpoint_unless_switched_off(engine, make_app, client_of):
    client_of(make_app(engine)).complete("Hi")
    client_of(make_app(engine)).complete("Hi", temperature=0, top_k=0)
    client_of(make_app(engine, generation_config="vllm")).complete("Hi")
    assert [(r.sampling.temperature, r.sampling.top_k) for r in engine.requests] == [
        (0.6, 20),
        (0.0, None),
        (1.0, None),
    ]


def test_stop_reasons(client, engine, fakes):
    cases = [
        (fakes.IM_END, {}, None, ""),
        (fakes.END_OF_TEXT, {}, None, ""),
        (65, {"stop_token_ids": [65]}, 65, ""),
        (65, {"stop_token_ids": [65], "include_stop_str_in_output": True}, 65, "A"),
        (fakes.IM_END, {"stop_token_ids": [fakes.IM_END], "ignore_eos": True}, fakes.IM_END, ""),
    ]
    for token_id, fields, reason, shown in cases:
        end = Finished(reason="stop", stop_token_id=token_id)
        engine.script = lambda _, token_id=token_id, end=end: ["x", [token_id], end]
        (choice,) = client.complete("Hi", **fields)["choices"]
        assert choice["stop_reason"] == reason
        assert choice["text"] == "x" + shown
        assert choice["finish_reason"] == "stop"


def test_ignored_eos_is_text_when_specials_are_shown(client, engine, fakes):
    engine.script = lambda _: ["a", [fakes.IM_END], "b", Finished(reason="length")]
    body = client.complete("Hi", ignore_eos=True)
    assert body["choices"][0]["text"] == "ab"
    body = client.complete("Hi", ignore_eos=True, skip_special_tokens=False)
    assert body["choices"][0]["text"] == "a<|im_end|>b"
    assert engine.requests[0].stop.ignore_eos
    assert engine.requests[0].stop.stop_token_ids == ()


FIELDS_OF_FEATURES = {
    "sampling.seed": {"seed": 1},
    "sampling.repetition_penalty": {"repetition_penalty": 1.5},
    "sampling.presence_penalty": {"presence_penalty": 1.5},
    "sampling.frequency_penalty": {"frequency_penalty": 1.5},
    "sampling.logit_bias": {"logit_bias": {"1": 1}},
    "sampling.allowed_token_ids": {"allowed_token_ids": [1]},
    "sampling.bad_words": {"bad_words": ["x"]},
    "stop.min_tokens": {"min_tokens": 1},
    "logprobs": {"logprobs": 1},
    "logprobs.token_ids": {"logprob_token_ids": [1], "logprobs": 1},
    "logprobs.mode": {"logprobs_mode": "processed", "logprobs": 1},
    "prompt_logprobs": {"prompt_logprobs": 1},
}


@pytest.mark.parametrize("feature", FIELDS_OF_FEATURES)
def test_features_that_the_engine_lacks_are_refused_by_name(feature, fakes, make_app, client_of):
    engine = fakes.FakeEngine(honoured=FEATURES.keys() - {feature})
    fields = FIELDS_OF_FEATURES[feature]
    response = client_of(make_app(engine)).post("/v1/completions", {"prompt": "Hi"} | fields)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == next(iter(fields))
    assert error["message"] == f"{error['param']} is not supported by this engine (fake)"
    assert not engine.requests


@pytest.mark.parametrize("field", ["logprobs", "prompt_logprobs"])
def test_an_engine_without_logprobs_names_no_bound(field, fakes, make_app, client_of):
    engine = fakes.FakeEngine(honoured=(), max_logprobs=0)
    response = client_of(make_app(engine)).post("/v1/completions", {"prompt": "Hi", field: 5})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, field)
    assert error["message"] == f"{field} is not supported by this engine (fake)"


def test_an_error_for_too_many_tokens_names_the_room(client):
    for prompt, room in (([5] * 100, 412), ([5] * 511, 1)):
        fields = {"prompt": prompt, "max_tokens": 700, "min_tokens": room + 1}
        response = client.post("/v1/completions", fields)
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (400, "min_tokens")
        assert f"at most {room}: " in error["message"]


BIAS = "logit_bias: must be an object of numbers by token id"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stop": [1]}, "stop[0]"),
        ({"stop": ["ok", ""]}, "stop[1]"),
        ({"stop": ["ok", "x" * 1025]}, "stop[1]"),
        ({"stop": 3}, "stop"),
        ({"stop": ""}, "stop"),
        ({"structured_outputs": {"choice": ["a", 2]}}, "structured_outputs.choice[1]"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"prompt": ["a", "bbb", ""]}, "prompt[2]"),
        ({"prompt": ["a", "x" * 5000]}, "prompt[1]"),
        ({"prompt": [5, "a"]}, "prompt[1]"),
        ({"prompt": ["a", [5]]}, "prompt[1]"),
        ({"prompt": [[5], ["a"]]}, "prompt[1][0]"),
        ({"prompt": [[5], [99999]]}, "prompt[1]"),
        ({"prompt": [99999]}, "prompt"),
        ({"prompt": {"a": [5]}}, "prompt"),
        ({"prompt": "x" * 5000}, "prompt"),
    ],
)
def test_an_entry_of_a_wrong_form_is_named_with_its_index(client, fields, param):
    response = client.post("/v1/completions", {"prompt": "Hi"} | fields)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == param
    assert not error["message"].startswith(f"{param}: {param}")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"stop_token_ids": [300]}, "stop_token_ids must hold ids below 300"),
        ({"stop_token_ids": list(range(200))}, "stop_token_ids must hold at most 64 ids"),
        ({"request_id": " x"}, "request_id: must be 1 to 128 visible ASCII characters"),
        ({"request_id": 3}, "request_id: must be 1 to 128 visible ASCII characters"),
        ({"logit_bias": {"7": 1, "5": None}}, f"{BIAS}; the entry '5' is wrong"),
        ({"logit_bias": {"null": 1}}, f"{BIAS}; the entry 'null' is wrong"),
        ({"logit_bias": [1]}, BIAS),
        (
            {"stream": True, "stream_options": {"include_usage": "x"}},
            "stream_options.include_usage: must be true or false",
        ),
        (
            {"structured_outputs": {"json": False}},
            "structured_outputs.json: must be an object, or its JSON as a string",
        ),
    ],
)
def test_a_refusal_is_a_sentence(client, fields, message):
    response = client.post("/v1/completions", {"prompt": "Hi"} | fields)
    assert response.status_code == 400
    assert response.json()["error"]["message"] == message


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"n": 0}, "n"),
        ({"n": 4000}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"min_tokens": 20}, "min_tokens"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop[1]"),
        ({"stop": ["x"] * 65}, "stop"),
        ({"stop": "x" * 1025}, "stop"),
        ({"stop_token_ids": [300]}, "stop_token_ids"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
        ({"logit_bias": {"300": 1}}, "logit_bias"),
        ({"allowed_token_ids": [300]}, "allowed_token_ids"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt[1]"),
        ({"prompt": [True]}, "prompt[0]"),
        ({"prompt": [300]}, "prompt"),
        ({"prompt": {}}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": "x" * 512}, "prompt"),
        ({"best_of": 2}, "best_of"),
        ({"suffix": "x"}, "suffix"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"prompt_logprobs": True}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"logprob_token_ids": [1]}, "logprob_token_ids"),
        ({"logprob_token_ids": [300], "logprobs": 0}, "logprob_token_ids"),
        ({"logprob_token_ids": [1] * 129, "logprobs": 0}, "logprob_token_ids"),
        ({"logprobs_mode": "processed"}, "logprobs_mode"),
        ({"logprobs_mode": "logits", "logprobs": 0}, "logprobs_mode"),
        ({"logprobs_mode": "raw_logits", "logprobs": 0}, "logprobs_mode"),
        ({"logprobs_mode": ["raw"], "logprobs": 0}, "logprobs_mode"),
        ({"logprobs_mode": "processed", "logprobs": 0, "echo": True}, "logprobs_mode"),
        ({"logprobs_mode": "processed_logprobs"}, "logprobs_mode"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"structured_outputs": {"regex": 1}}, "structured_outputs.regex"),
        ({"guided_regex": "a"}, "guided_regex"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
    ],
)
def test_bad_values_are_refused_by_name(client, engine, fields, param):
    response = client.post("/v1/completions", {"prompt": "Hi"} | fields)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert error["type"] == "BadRequestError"
    assert len(response.content) < 1000
    assert not engine.requests


@pytest.mark.parametrize(
    ("given", "mode"),
    [
        *(("raw", "raw"), ("raw_logprobs", "raw"), (None, "raw")),
        *(("processed", "processed"), ("processed_logprobs", "processed")),
    ],
)
def test_modes_of_logprobs_and_vllms_names_for_them(client, engine, given, mode):
    client.complete("Hi", logprobs=1, logprobs_mode=given)
    assert engine.requests[-1].logprobs.mode == mode
    body = {"input": "Hi", "top_logprobs": 1, "logprobs_mode": given}
    assert client.post("/v1/responses", body).status_code == 200
    assert engine.requests[-1].logprobs.mode == mode


def test_nan_is_no_temperature(client):
    body = b'{"prompt":"Hi","temperature":NaN}'
    response = client.request("POST", "/v1/completions", content=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "temperature"


def test_harmless_values_of_unsupported_fields_pass(client):
    client.complete(
        "Hi",
        best_of=1,
        suffix="",
        use_beam_search=False,
        response_format={"type": "text"},
        stop=None,
        user="me",
        metadata={"a": 1},
        never_heard_of={"a": [1]},
    )
    client.chat("Hi", tool_choice="none", modalities=["text"], parallel_tool_calls=True)


@pytest.mark.parametrize("field", ["functions", "reasoning_effort", "chat_template"])
def test_chat_fields_that_would_be_dropped_are_refused(client, field):
    messages = [{"role": "user", "content": "Hi"}]
    response = client.post("/v1/chat/completions", {"messages": messages, field: ["x"]})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == field


def test_an_older_field_is_refused_with_the_one_that_took_its_place(client):
    messages = [{"role": "user", "content": "Hi"}]
    for field, instead in (("functions", "tools"), ("guided_json", "structured_outputs.json")):
        response = client.post("/v1/chat/completions", {"messages": messages, field: ["x"]})
        assert response.json()["error"]["message"].endswith(f"by this server; use {instead}")


def test_chat_names_its_own_fields(client):
    messages = [{"role": "user", "content": "x" * 600}]
    response = client.post("/v1/chat/completions", {"messages": messages})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "messages"
    response = client.post(
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "x"}], "top_logprobs": 3},
    )
    assert response.json()["error"]["param"] == "top_logprobs"
    response = client.post(
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "x"}], "logprobs": True, "top_logprobs": 99},
    )
    assert response.json()["error"]["param"] == "top_logprobs"


def test_a_refusal_costs_no_tokenising(client, text, monkeypatch):
    monkeypatch.setattr(text, "encode", lambda *a, **k: pytest.fail("was tokenised"))
    for fields in ({"temperature": -1}, {"suffix": "x"}, {"model": "nope"}, {"n": 2000}):
        response = client.post("/v1/completions", {"prompt": "Hi"} | fields)
        assert response.status_code in (400, 404)


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("seed", "it takes -9223372036854775808 to 18446744073709551615"),
        ("n", "it takes 1 or more"),
    ],
)
def test_an_integer_out_of_range_gets_the_bounds(client, field, words):
    response = client.post("/v1/completions", {"prompt": "Hi", field: 1e30})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, field)
    assert error["message"] == f"{field}: is too large for an integer; {words}"


@pytest.mark.parametrize(
    "field",
    ["n", "max_tokens", "temperature", "top_k", "seed", "priority", "logprobs", "deadline_ms"],
)
@pytest.mark.parametrize("value", [True, False])
def test_a_boolean_is_no_number(client, engine, field, value):
    response = client.post("/v1/completions", {"prompt": "Hi", field: value})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == field
    assert engine.requests == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "Hi"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
        ("/v1/responses", {"input": "Hi"}),
        (
            "/v1/messages",
            {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9},
        ),
    ],
)
def test_a_deadline_counts_from_the_arrival(client, engine, path, body):
    assert client.post(path, body).status_code == 200
    assert client.post(path, body | {"deadline_ms": 1500}).status_code == 200
    without, request = engine.requests
    assert without.deadline is None
    assert request.deadline == pytest.approx(request.arrival + 1.5)
    for value in (0, -1, 2**31, 1.5, "soon", True):
        response = client.post(path, body | {"deadline_ms": value})
        assert response.status_code == 400, value
        assert "deadline_ms" in response.text
        assert path == "/v1/messages" or response.json()["error"]["param"] == "deadline_ms"
    assert len(engine.requests) == 2
