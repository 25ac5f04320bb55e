"""Logprobs that JSON or OpenAI's formats cannot express directly."""

import threading

from openinfer_contract import Finished, TokenEvent, TokenLogprobs, pack_floats, pack_ids
from openinfer_frontend.protocols._json import to_json, to_json_in_slices
from openinfer_frontend.protocols.openai import _choices_format
from openinfer_frontend.protocols.openai._logprobs import TokenNames, echoed_logprobs
from openinfer_frontend.routes import _generate_routes


def test_minus_infinity_and_equal_spellings(client, engine):
    half = 0xC3  # two tokens that are parts of characters have the same spelling
    logprobs = TokenLogprobs(
        sampled=pack_floats([float("-inf")]),
        ranks=pack_ids([3]),
        num_top=2,
        top_ids=pack_ids([half, half + 1]),
        top=pack_floats([-1.0, -2.0]),
    )
    event = TokenEvent(token_ids=pack_ids([97]), logprobs=logprobs)
    engine.script = lambda _: [event, Finished(reason="length")]
    got = client.complete("Hi", logprobs=2)["choices"][0]["logprobs"]
    assert got["token_logprobs"] == [-9999.0]
    assert got["top_logprobs"] == [{"\ufffd": -1.0, "a": -9999.0}]
    got = client.chat("Hi", logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]["content"][0]
    assert got["logprob"] == -9999.0
    assert [(top["logprob"], top["bytes"]) for top in got["top_logprobs"]] == [
        (-1.0, [half]),
        (-2.0, [half + 1]),
    ]


def test_an_echo_has_logprobs_too(client, engine):
    body = client.complete([72, 105, 256, 33], echo=True, logprobs=1)
    (choice,) = body["choices"]
    assert choice["text"] == "Hi<|im_start|>!Hello"
    assert choice["logprobs"] == {
        "tokens": ["H", "i", "<|im_start|>", "!", "H", "e", "l", "l", "o", "<|im_end|>"],
        "text_offset": [0, 1, 2, 14, 15, 16, 17, 18, 19, 20],
        "token_logprobs": [None] + [-0.5] * 9,
        "top_logprobs": [None]
        + [{"a": -1.0, token: -0.5} for token in ("i", "<|im_start|>", "!")]
        + [{"a": -1.0, token: -0.5} for token in (*"Hello", "<|im_end|>")],
    }
    (request,) = engine.requests
    assert request.prompt_logprobs.num_top == 1
    fields = {"prompt": "Say", "echo": True, "logprobs": 0}
    opening, *rest = client.stream("/v1/completions", fields)
    (shown,) = opening["choices"]
    assert shown["text"] == "Say"
    assert shown["logprobs"] == {
        "tokens": ["S", "a", "y"],
        "text_offset": [0, 1, 2],
        "token_logprobs": [None, -0.5, -0.5],
        "top_logprobs": [None, {"a": -0.5}, {"y": -0.5}],
    }
    assert rest[0]["choices"][0]["logprobs"]["text_offset"][0] == 3


def test_long_prompts_are_spelled_in_a_thread(client, monkeypatch):
    threads = set()

    def spelled(*arguments):
        threads.add(threading.current_thread().name.partition("_")[0])
        return echoed_logprobs(*arguments)

    fields = {"prompt": ["Say", "Hi"], "echo": True, "logprobs": 1, "n": 2}

    def answers():
        """Returns the whole response, and the texts and logprobs of each streamed choice."""
        whole = client.complete(**fields)["choices"]
        columns = [[] for _ in whole]
        for event in client.stream("/v1/completions", fields):
            (choice,) = event["choices"]
            columns[choice["index"]].append((choice["text"], choice["logprobs"]))
        return whole, columns

    monkeypatch.setattr(_choices_format, "echoed_logprobs", spelled)
    inline = answers()
    assert "openinfer-text" not in threads
    threads.clear()
    monkeypatch.setattr(_generate_routes, "_MAX_INLINE_SCORES", 2)
    assert answers() == inline
    assert threads == {"openinfer-text"}


def test_json_in_slices_is_the_same_json():
    deep = {"a": [1.5, None] * 600, "b": [{"é": i} for i in range(700)], "c": {}, "d": [[], {}, 1]}
    for value in (deep, [deep, deep], [], {}, [1], "x", {"1": ["é"] * 513}):
        assert to_json_in_slices(value) == to_json(value)


def test_max_tokens_0_scores_the_prompt(client, engine):
    fields = {"max_tokens": 0, "echo": True, "logprobs": 1, "n": 2}
    body = client.complete(["Hi", "X"], **fields)
    assert [choice["text"] for choice in body["choices"]] == ["Hi", "Hi", "X", "X"]
    assert [choice["finish_reason"] for choice in body["choices"]] == ["length"] * 4
    assert [choice["logprobs"]["token_logprobs"] for choice in body["choices"]] == [
        [None, -0.5],
        [None, -0.5],
        [None],
        [None],
    ]
    assert body["usage"]["completion_tokens"] == 0
    assert [request.stop.max_tokens for request in engine.requests] == [1] * 4
    events = client.stream("/v1/completions", {"prompt": "Hi"} | fields | {"n": 1})
    assert [event["choices"][0]["text"] for event in events] == ["Hi", ""]
    assert events[-1]["choices"][0]["finish_reason"] == "length"
    assert client.post("/v1/completions", {"prompt": "Hi", "max_tokens": 0}).status_code == 400


def test_prompt_logprobs(client, engine):
    body = client.complete("Hi!", prompt_logprobs=1, logprobs=3, echo=True)
    (choice,) = body["choices"]
    assert choice["prompt_logprobs"] == [
        None,
        {
            "105": {"logprob": -0.5, "rank": 1, "decoded_token": "i"},
            "97": {"logprob": -1.0, "rank": 1, "decoded_token": "a"},
        },
        {
            "33": {"logprob": -0.5, "rank": 1, "decoded_token": "!"},
            "97": {"logprob": -1.0, "rank": 1, "decoded_token": "a"},
        },
    ]
    assert set(choice["logprobs"]["top_logprobs"][1]) == {"a", "b", "c", "i"}
    assert engine.requests[0].prompt_logprobs.num_top == 3
    body = client.chat("Hi", prompt_logprobs=0)
    assert body["prompt_logprobs"][0] is None
    assert len(body["prompt_logprobs"]) == body["usage"]["prompt_tokens"]
    assert "prompt_logprobs" not in client.chat("Hi")


def test_logprobs_of_ids_that_are_asked_for(client):
    got = client.complete("Hi", logprobs=1, logprob_token_ids=[120, 97, 120])["choices"][0]
    assert got["logprobs"]["top_logprobs"][0] == {"a": -11.0, "x": -12.0, "H": -0.5}
    fields = {"logprobs": True, "logprob_token_ids": [120]}
    (entry, *_) = client.chat("Hi", **fields)["choices"][0]["logprobs"]["content"]
    assert [(top["token"], top["logprob"]) for top in entry["top_logprobs"]] == [("x", -10.0)]


def test_offsets_are_positions_in_the_text(client, engine, fakes):
    said = [[byte] for byte in "é".encode()] + [[0xE4, 0xBD], list(b"a b"), [fakes.IM_END]]
    engine.script = lambda request: [
        fakes.scheduled(request.num_prompt_tokens),
        *said,
        Finished(reason="stop", stop_token_id=fakes.IM_END),
    ]
    fields = {"prompt": "😀 你好 ok", "echo": True, "logprobs": 1}
    prompt = [0] * 4 + [1] + [2] * 3 + [3] * 3 + [4, 5, 6]
    # An output that ends with two of a character's three bytes ends with one replacement character.
    output = [7, 7, 8, 8, 9, 10, 11, 12]
    for as_ids in (False, True):
        body = client.complete(**fields, return_tokens_as_token_ids=as_ids)
        (choice,) = body["choices"]
        assert choice["text"] == "😀 你好 oké\ufffda b"
        assert choice["logprobs"]["text_offset"] == prompt + output
    events = client.stream("/v1/completions", fields)
    shown = [event["choices"][0]["logprobs"] for event in events]
    assert [at for columns in shown if columns for at in columns["text_offset"]] == prompt + output


def test_tokens_around_a_text_have_no_offset_in_it(text):
    names = TokenNames(text.tokenizer, as_ids=False)
    ids = [257, *"aé".encode(), 256]
    assert names.prompt_offsets(ids, "aé") == [0, 0, 1, 1, 2]
    assert names.prompt_offsets(ids, "<|im_end|>aé<|im_start|>") == [0, 10, 11, 11, 12]
