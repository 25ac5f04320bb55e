"""POST /v1/completions, whole and streamed."""

import pytest

from openinfer_contract import Finished, unpack_ids
from openinfer_text import StopSet


def test_a_prompt_is_completed(client, engine):
    body = client.complete("Hi", max_tokens=7, model="tiny")
    (choice,) = body["choices"]
    assert body["object"] == "text_completion"
    assert body["id"].startswith("cmpl-")
    assert body["model"] == "tiny"
    assert choice == {
        "index": 0,
        "text": "Hello",
        "logprobs": None,
        "finish_reason": "stop",
        "stop_reason": None,
    }
    assert body["usage"] == {
        "prompt_tokens": 2,
        "completion_tokens": 6,
        "total_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": 3},
    }
    (request,) = engine.requests
    assert unpack_ids(request.prompt_token_ids) == [72, 105]
    assert request.stop.max_tokens == 7
    assert request.request_id == body["id"]


def test_max_tokens_is_16_and_leaves_room(client, engine):
    client.complete("Hi")
    client.complete("x" * 508, max_tokens=100)
    assert [r.stop.max_tokens for r in engine.requests] == [16, 4]


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("ab", [[97, 98]]),
        (["a", "b"], [[97], [98]]),
        ([97, 98], [[97, 98]]),
        ([[97], [98, 99]], [[97], [98, 99]]),
    ],
)
def test_every_form_of_prompt(client, engine, prompt, expected):
    body = client.complete(prompt)
    assert [unpack_ids(r.prompt_token_ids) for r in engine.requests] == expected
    assert [c["index"] for c in body["choices"]] == list(range(len(expected)))


def test_n_and_prompts_make_choices_prompt_by_prompt(client, engine, fakes):
    def script(request):
        seed = request.sampling.seed
        return [f"{request.num_prompt_tokens}/{seed}", Finished(reason="length")]

    engine.script = script
    body = client.complete(["a", "bb"], n=2, seed=2**64 - 1)
    assert [(c["index"], c["text"]) for c in body["choices"]] == [
        (0, f"1/{2**64 - 1}"),
        (1, "1/0"),
        (2, f"2/{2**64 - 1}"),
        (3, "2/0"),
    ]
    assert [c["finish_reason"] for c in body["choices"]] == ["length"] * 4
    assert body["usage"]["prompt_tokens"] == 3
    assert [r.request_id for r in engine.requests] == [f"{body['id']}-{i}" for i in range(4)]


def test_stream(client, engine):
    events = client.stream("/v1/completions", {"prompt": "Hi"})
    assert {(e["id"], e["object"], e["model"]) for e in events} == {
        (events[0]["id"], "text_completion", "tiny")
    }
    # The fake engine emits everything at once, so it was merged into one event.
    (event,) = events
    assert event["choices"] == [
        {
            "index": 0,
            "text": "Hello",
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
        }
    ]


def test_stream_usage(client):
    events = client.stream(
        "/v1/completions", {"prompt": "Hi", "stream_options": {"include_usage": True}}
    )
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] == 6
    assert all("usage" not in event for event in events[:-1])
    events = client.stream(
        "/v1/completions",
        {
            "prompt": ["Hi", "Hey"],
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        },
    )
    assert [e["usage"]["prompt_tokens"] for e in events] == [2, 3, 5]


def test_logprobs(client):
    body = client.complete("Hi", logprobs=2)
    logprobs = body["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["H", "e", "l", "l", "o", "<|im_end|>"]
    assert logprobs["text_offset"] == [0, 1, 2, 3, 4, 5]
    assert logprobs["token_logprobs"] == [-0.5] * 6
    assert logprobs["top_logprobs"][0] == {"a": -1.0, "b": -2.0, "H": -0.5}
    body = client.complete("Hi", logprobs=0, return_tokens_as_token_ids=True)
    assert body["choices"][0]["logprobs"]["tokens"][0] == "token_id:72"


def test_echo(client):
    assert client.complete("Say: ", echo=True)["choices"][0]["text"] == "Say: Hello"
    assert client.complete([83, 58], echo=True)["choices"][0]["text"] == "S:Hello"
    events = client.stream("/v1/completions", {"prompt": "Say: ", "echo": True})
    assert [e["choices"][0]["text"] for e in events] == ["Say: ", "Hello"]


def test_return_token_ids(client, fakes):
    (choice,) = client.complete("Hi", return_token_ids=True)["choices"]
    assert choice["prompt_token_ids"] == [72, 105]
    assert choice["token_ids"] == [*b"Hello", fakes.IM_END]
    first, second = client.stream("/v1/completions", {"prompt": "Hi", "return_token_ids": True})
    assert first["choices"][0]["prompt_token_ids"] == [72, 105]
    assert second["choices"][0]["token_ids"] == [*b"Hello", fakes.IM_END]


def test_samples_share_their_stop_strings(client, monkeypatch):
    made = []
    monkeypatch.setattr(
        "openinfer_text._request_lowering.StopSet",
        lambda stops: made.append(stops) or StopSet(stops),
    )
    body = client.complete(["Hi", "Ho"], n=3, stop=["l", "x"])
    assert [choice["stop_reason"] for choice in body["choices"]] == ["l"] * 6
    assert made == [("l", "x")]
