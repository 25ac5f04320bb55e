"""POST /v1/chat/completions, whole and streamed."""

from openinfer_contract import Finished, unpack_ids


def test_a_conversation_gets_a_response(client, engine, text):
    body = client.chat("Hi")
    assert body["object"] == "chat.completion"
    assert body["id"].startswith("chatcmpl-")
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello"},
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
        }
    ]
    (request,) = engine.requests
    rendered = text.decode(unpack_ids(request.prompt_token_ids), skip_special_tokens=False)
    assert rendered == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert request.stop.max_tokens == 512 - request.num_prompt_tokens
    assert unpack_ids(request.cache.boundaries)


def test_max_completion_tokens_wins(client, engine):
    client.chat("Hi", max_tokens=5, max_completion_tokens=4)
    assert engine.requests[0].stop.max_tokens == 4


def test_content_parts(client, engine, text):
    client.chat([{"type": "text", "text": "Hi"}])
    assert "Hi" in text.decode(unpack_ids(engine.requests[0].prompt_token_ids))


def test_stream_names_the_role_first(client, engine):
    messages = [{"role": "user", "content": "Hi"}]
    events = client.stream("/v1/chat/completions", {"messages": messages, "n": 2})
    assert {e["object"] for e in events} == {"chat.completion.chunk"}
    choices = [e["choices"][0] for e in events]
    assert [c["index"] for c in choices] == [0, 0, 1, 1]
    assert choices[0] == {
        "index": 0,
        "delta": {"role": "assistant", "content": ""},
        "logprobs": None,
        "finish_reason": None,
    }
    assert choices[1] == {
        "index": 0,
        "delta": {"content": "Hello"},
        "logprobs": None,
        "finish_reason": "stop",
        "stop_reason": None,
    }


def test_logprobs(client):
    body = client.chat("Hi", logprobs=True, top_logprobs=1)
    content = body["choices"][0]["logprobs"]["content"]
    assert len(content) == 6
    assert content[0] == {
        "token": "H",
        "logprob": -0.5,
        "bytes": [72],
        "top_logprobs": [{"token": "a", "logprob": -1.0, "bytes": [97]}],
    }
    body = client.chat("Hi", logprobs=True)
    assert body["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []


def test_return_token_ids(client, fakes):
    body = client.chat("Hi", return_token_ids=True)
    assert body["choices"][0]["token_ids"] == [*b"Hello", fakes.IM_END]
    messages = [{"role": "user", "content": "Hi"}]
    first, second = client.stream(
        "/v1/chat/completions", {"messages": messages, "return_token_ids": True}
    )
    assert first["prompt_token_ids"] == body["prompt_token_ids"]
    assert second["choices"][0]["token_ids"] == [*b"Hello", fakes.IM_END]


def test_continue_final_message(client, engine, text):
    client.post(
        "/v1/chat/completions",
        {
            "messages": [
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": "Well"},
            ],
            "continue_final_message": True,
            "add_generation_prompt": False,
        },
    )
    assert text.decode(unpack_ids(engine.requests[0].prompt_token_ids)).endswith("\nWell")


def test_messages_that_do_not_fit_are_refused(client, engine):
    response = client.post("/v1/chat/completions", {"messages": [{"content": "Hi"}]})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "messages[0].role"
    image = {"type": "image_url", "image_url": {"url": "http://x"}}
    response = client.post(
        "/v1/chat/completions", {"messages": [{"role": "user", "content": [image]}]}
    )
    assert response.status_code == 400
    assert client.post("/v1/chat/completions", {"messages": []}).status_code == 400
    assert not engine.requests


def test_a_broken_character_is_held_back(client, engine):
    euro = "€".encode()
    engine.script = lambda _: [list(euro[:2]), Finished(reason="length")]
    assert client.chat("Hi")["choices"][0]["message"]["content"] == "\ufffd"
