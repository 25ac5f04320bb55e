"""The official clients of three protocols get the same text from the built-in model."""

import anthropic
import pytest

HELLO = [{"role": "user", "content": "Hello!"}]


@pytest.fixture
def claude(tiny_server):
    with anthropic.Anthropic(base_url=tiny_server.url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def expected(tiny_server):
    """Returns the text of a chat completion."""
    answer = tiny_server.client.chat.completions.create(
        model="tiny", messages=HELLO, temperature=0, max_tokens=32, reasoning_effort="none"
    )
    return answer.choices[0].message.content, answer.usage


def test_messages(claude, expected):
    text, usage = expected
    arguments = {"model": "tiny", "max_tokens": 32, "messages": HELLO}
    extra = {"temperature": 0}
    whole = claude.messages.create(**arguments, extra_body=extra)
    assert [block.text for block in whole.content] == [text]
    assert whole.stop_reason == "end_turn"
    assert whole.usage.output_tokens == usage.completion_tokens
    counted = claude.messages.count_tokens(model="tiny", messages=HELLO)
    assert counted.input_tokens == usage.prompt_tokens
    with claude.messages.stream(**arguments, extra_body=extra) as stream:
        pieces = list(stream.text_stream)
    assert "".join(pieces) == text
    assert len(pieces) > 1, "several events, not one at the end"


def test_responses(tiny_server, expected):
    text, usage = expected
    arguments = {"model": "tiny", "input": "Hello!", "temperature": 0, "max_output_tokens": 32}
    arguments["reasoning"] = {"effort": "none"}
    whole = tiny_server.client.responses.create(**arguments)
    assert (whole.status, whole.output_text) == ("completed", text)
    assert whole.usage.output_tokens == usage.completion_tokens
    with tiny_server.client.responses.stream(**arguments) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(deltas) == final.output_text == text
    assert len(deltas) > 1, "several events, not one at the end"


def test_a_prompt_is_rendered_without_an_answer(tiny_server, expected):
    _, usage = expected
    body = {"model": "tiny", "messages": HELLO, "reasoning_effort": "none"}
    status, rendered = tiny_server.post("/v1/chat/completions/render", body)
    assert status == 200
    assert len(rendered["token_ids"]) == usage.prompt_tokens
    assert "Hello!" in rendered["prompt"]
