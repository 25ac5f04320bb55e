"""The server with the built-in model, tested through the official client."""

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import openai
import pytest

HELLO = [{"role": "user", "content": "Hello!"}]


def test_a_greeting_gets_an_english_sentence(tiny_server):
    answer = tiny_server.client.chat.completions.create(
        model="tiny", messages=HELLO, temperature=0, max_tokens=64
    )
    (choice,) = answer.choices
    text = choice.message.content
    assert choice.finish_reason == "stop"
    assert text[0].isupper()
    assert text[-1] in ".!?"
    assert len(text.split()) >= 2
    assert answer.usage.completion_tokens > len(text.split())
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_streaming_gives_the_same_text_and_the_documented_order(tiny_server):
    def ask(**options):
        return tiny_server.client.chat.completions.create(
            model="tiny", messages=HELLO, temperature=0, max_tokens=32, **options
        )

    whole = ask()
    chunks = list(ask(stream=True, stream_options={"include_usage": True}))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    num_tokens = sum(1 for c in chunks if c.choices and c.choices[0].delta.content is not None)
    assert num_tokens >= 2, "several events, not one at the end"


def test_completions_take_a_string_a_list_and_ids(tiny_server):
    client = tiny_server.client
    _, tokenized = tiny_server.post("/tokenize", {"model": "tiny", "prompt": "Once upon a time"})
    ids = tokenized["tokens"]
    assert tokenized["count"] == len(ids)
    _, text = tiny_server.post("/detokenize", {"model": "tiny", "tokens": ids})
    assert text["prompt"] == "Once upon a time"

    def texts(prompt):
        answer = client.completions.create(
            model="tiny", prompt=prompt, max_tokens=12, temperature=0
        )
        return [choice.text for choice in answer.choices]

    (as_text,) = texts("Once upon a time")
    assert as_text
    assert texts(ids) == [as_text]
    assert texts(["Once upon a time", "Hello"])[0] == as_text
    assert texts([ids, ids]) == [as_text, as_text]


def test_a_prefix_hit_shows_in_the_usage_and_changes_nothing(tiny_server):
    prompt = "A little story about the sea and the sky and a bird. " * 6

    def ask():
        return tiny_server.client.completions.create(
            model="tiny", prompt=prompt, max_tokens=16, temperature=0
        )

    tiny_server.post("/reset_prefix_cache", {})
    cold, warm = ask(), ask()
    assert cold.usage.prompt_tokens_details.cached_tokens == 0
    cached = warm.usage.prompt_tokens_details.cached_tokens
    assert cached > 0
    assert cached % 16 == 0
    assert cached < warm.usage.prompt_tokens
    assert warm.choices[0].text == cold.choices[0].text


def test_seeds_repeat_and_samples_differ(tiny_server):
    def ask(seed, n=1):
        answer = tiny_server.client.completions.create(
            model="tiny", prompt="I", max_tokens=24, temperature=1.5, seed=seed, n=n
        )
        return [choice.text for choice in answer.choices]

    # One row at a time: batches of different sizes round differently in bf16.
    first = ask(7)
    assert ask(7) == first
    assert ask(8) != first
    assert len(set(ask(7, n=4))) > 1


def test_logprobs_of_the_greedy_token_come_first(tiny_server):
    answer = tiny_server.client.chat.completions.create(
        model="tiny", messages=HELLO, temperature=0, max_tokens=8, logprobs=True, top_logprobs=3
    )
    content = answer.choices[0].logprobs.content
    assert len(content) == answer.usage.completion_tokens
    for entry in content:
        assert len(entry.top_logprobs) == 3
        values = [top.logprob for top in entry.top_logprobs]
        assert values == sorted(values, reverse=True)
        assert entry.logprob == pytest.approx(values[0])
        assert bytes(entry.bytes).decode(errors="replace") == entry.token


def test_a_stop_string_ends_the_text_before_it(tiny_server):
    client = tiny_server.client
    whole = client.chat.completions.create(model="tiny", messages=HELLO, temperature=0)
    text = whole.choices[0].message.content
    stop = text[len(text) // 2 : len(text) // 2 + 3]
    cut = client.chat.completions.create(model="tiny", messages=HELLO, temperature=0, stop=[stop])
    assert cut.choices[0].finish_reason == "stop"
    assert cut.choices[0].message.content == text[: text.index(stop)]
    assert cut.choices[0].model_extra["stop_reason"] == stop


def test_token_ids_are_returned_on_request(tiny_server):
    answer = tiny_server.client.completions.create(
        model="tiny", prompt="Hello", max_tokens=5, extra_body={"return_token_ids": True}
    )
    assert len(answer.choices[0].model_extra["token_ids"]) == answer.usage.completion_tokens


def test_max_tokens_finishes_by_length(tiny_server):
    answer = tiny_server.client.completions.create(
        model="tiny", prompt="Once", max_tokens=3, extra_body={"ignore_eos": True}
    )
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 3


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"model": "nothing", "prompt": "x"}, 404, "model"),
        ({"model": "tiny", "prompt": "x", "temperature": -1}, 400, "temperature"),
        ({"model": "tiny", "prompt": "x", "top_p": 0}, 400, "top_p"),
        ({"model": "tiny", "prompt": "x", "max_tokens": 0}, 400, "max_tokens"),
        ({"model": "tiny", "prompt": [10**7]}, 400, "prompt"),
        ({"model": "tiny", "prompt": [1] * 100_000}, 400, "prompt"),
        ({"model": "tiny"}, 400, "prompt"),
        ({"model": "tiny", "prompt": "x", "frequency_penalty": 3}, 400, "frequency_penalty"),
        ({"model": "tiny", "prompt": "x", "suffix": "y"}, 400, "suffix"),
    ],
)
def test_bad_input_names_the_field(tiny_server, body, status, param):
    got, answer = tiny_server.post("/v1/completions", body)
    assert (got, answer["error"]["param"]) == (status, param), answer
    assert answer["error"]["message"]
    assert answer["error"]["type"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (
            "/v1/chat/completions",
            {"messages": [{"role": "boss", "content": "x"}]},
            "messages[0].role",
        ),
        ("/v1/chat/completions", {"messages": [{"role": "user"}]}, "messages[0].content"),
        ("/v1/chat/completions", {"messages": []}, "messages"),
        (
            "/v1/chat/completions",
            {"messages": HELLO, "logprobs": True, "top_logprobs": 99},
            "top_logprobs",
        ),
        ("/detokenize", {"tokens": [5, 2**32]}, "tokens[1]"),
    ],
)
def test_chats_and_ids_that_make_no_sense(tiny_server, path, body, param):
    status, answer = tiny_server.post(path, {"model": "tiny", **body})
    assert (status, answer["error"]["param"]) == (400, param), answer


def test_the_official_client_sees_openai_errors(tiny_server):
    with pytest.raises(openai.NotFoundError) as caught:
        tiny_server.client.completions.create(model="nothing", prompt="x")
    assert caught.value.param == "model"


def test_models_health_and_version(tiny_server):
    models = tiny_server.client.models.list().data
    assert [model.id for model in models] == ["tiny"]
    assert tiny_server.client.models.retrieve("tiny").id == "tiny"
    assert tiny_server.get("/health")[0] == 200
    assert tiny_server.get("/ready")[0] == 200
    assert tiny_server.get("/version")[1]["version"]


def test_many_at_once_equal_one_at_a_time(tiny_server):
    prompts = [f"Tell me about the number {n}." for n in range(24)]

    def ask(prompt):
        answer = tiny_server.client.completions.create(
            model="tiny", prompt=prompt, max_tokens=12, temperature=0
        )
        return answer.choices[0].text

    alone = [ask(prompt) for prompt in prompts]
    with ThreadPoolExecutor(len(prompts)) as pool:
        together = list(pool.map(ask, prompts))
    same = sum(a == b for a, b in zip(alone, together, strict=True))
    assert same >= len(prompts) - 2, "bf16 ties aside, batching changes nothing"


@pytest.mark.parametrize("is_streaming", [True, False])
def test_a_client_that_hangs_up_cancels(tiny_server, is_streaming):
    before = tiny_server.load()["num_output_tokens"]
    body = json.dumps(
        {
            "model": "tiny",
            "prompt": "Once",
            "max_tokens": 100_000,
            "ignore_eos": True,
            "stream": is_streaming,
        }
    ).encode()
    parts = urlsplit(tiny_server.url)
    with socket.create_connection((parts.hostname, parts.port)) as sock:
        sock.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n" % len(body) + body
        )
        deadline = time.monotonic() + 10
        while not tiny_server.load()["num_running"]:
            assert time.monotonic() < deadline
    tiny_server.assert_idle()
    after = tiny_server.load()
    room = tiny_server.client.models.retrieve("tiny").model_extra["max_model_len"]
    assert after["num_output_tokens"] - before < room - 1, "it was cut short"


def test_a_request_past_its_deadline_is_given_up(tiny_server):
    body = {"model": "tiny", "prompt": "Once", "max_tokens": 900, "ignore_eos": True}
    status, answer = tiny_server.post("/v1/completions", body | {"deadline_ms": 5})
    assert (status, answer["error"]["param"]) == (408, "deadline_ms")
    assert "deadline passed after" in answer["error"]["message"]
    status, _ = tiny_server.post("/v1/completions", body | {"max_tokens": 2, "deadline_ms": 60_000})
    assert status == 200
