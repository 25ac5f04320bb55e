"""`LLM` and HTTP are one path: the same fields give the same outputs and the same refusals."""

from collections.abc import Iterator
from typing import Any

import pytest

from openinfer import LLM, RequestRejected, SamplingParams

PROMPT = "Once upon a time"
MESSAGES = [{"role": "user", "content": "Tell me a story."}]
BASE: dict[str, Any] = {"max_tokens": 16, "seed": 3, "temperature": 1.2}

HONOURED: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.0},
    {"top_k": 3},
    {"top_p": 0.3},
    {"min_p": 0.2},
    {"n": 3},
    {"repetition_penalty": 1.5, "presence_penalty": 1.0, "frequency_penalty": 0.5},
    {"logit_bias": {300: 5.0}},
    {"allowed_token_ids": list(range(300, 340))},
    {"bad_words": ["the", "a"]},
    {"stop": ["e", "zzz"]},
    {"stop": "e", "include_stop_str_in_output": True},
    {"stop": "e", "min_tokens": 8},
    {"stop_token_ids": list(range(300, 330))},
    {"ignore_eos": True, "skip_special_tokens": False, "spaces_between_special_tokens": False},
    {"logprobs": 2},
    {"logprobs": 1, "logprob_token_ids": [300, 302]},
    {"logprobs": 1, "logprobs_mode": "processed"},
    {"prompt_logprobs": 2},
    {"structured_outputs": {"choice": ["yes", "no"]}},
    {"cache_salt": "mine", "priority": -1, "deadline_ms": 60_000, "session_id": "talk"},
)
REFUSED: tuple[dict[str, Any], ...] = (
    {"n": 0},
    {"max_tokens": 0},
    {"min_tokens": -1},
    {"min_tokens": 17},
    {"temperature": -0.1},
    {"temperature": 101},
    {"temperature": "hot"},
    {"top_k": -2},
    {"top_p": 0},
    {"min_p": 1.1},
    {"repetition_penalty": 0},
    {"presence_penalty": 2.1},
    {"frequency_penalty": -2.1},
    {"logit_bias": {99_999: 1.0}},
    {"logit_bias": {5: 101.0}},
    {"allowed_token_ids": []},
    {"allowed_token_ids": [99_999]},
    {"bad_words": [""]},
    {"stop_token_ids": [99_999]},
    {"logprobs": -1},
    {"logprobs": 21},
    {"logprob_token_ids": [5]},
    {"logprobs": 1, "logprob_token_ids": [99_999]},
    {"logprobs_mode": "processed"},
    {"logprobs": 1, "logprobs_mode": "odd"},
    {"prompt_logprobs": 21},
    {"cache_salt": ""},
    {"deadline_ms": 0},
    {"stop": ""},
    {"ignore_eos": True, "structured_outputs": {"regex": "a"}},
    {"ignore_eos": "x"},
)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM() as llm:
        yield llm


def _body(fields: dict[str, Any]) -> dict[str, Any]:
    body = BASE | fields | {"return_token_ids": True, "return_tokens_as_token_ids": True}
    if "logit_bias" in body:
        body["logit_bias"] = {str(token_id): bias for token_id, bias in body["logit_bias"].items()}
    return body


def _ids_and_values(tops: list[dict[str, float]]) -> list[dict[int, float]]:
    return [
        {int(name.removeprefix("token_id:")): pytest.approx(value) for name, value in top.items()}
        for top in tops
    ]


@pytest.mark.parametrize("fields", HONOURED, ids=str)
def test_a_completion_is_the_same(tiny_server: Any, llm: LLM, fields: dict[str, Any]) -> None:
    status, response = tiny_server.post("/v1/completions", _body(fields) | {"prompt": PROMPT})
    assert status == 200, response
    samples = llm.generate(PROMPT, SamplingParams(**BASE | fields), has_progress_bar=False)
    assert len(samples) == len(response["choices"]) == fields.get("n", 1)
    for sample, choice in zip(samples, response["choices"], strict=True):
        assert sample.text == choice["text"]
        assert sample.token_ids == choice["token_ids"]
        assert sample.finish_reason == choice["finish_reason"]
        assert sample.stop_reason == choice["stop_reason"]
        if "logprobs" in fields:
            logprobs = choice["logprobs"]
            assert sample.logprobs == pytest.approx(logprobs["token_logprobs"])
            for top, expected in zip(
                sample.top_logprobs or (), _ids_and_values(logprobs["top_logprobs"]), strict=True
            ):
                assert top == {token_id: expected[token_id] for token_id in top}
        if "prompt_logprobs" in fields:
            scored = [entry for entry in choice["prompt_logprobs"] if entry is not None]
            ids = llm.generate(PROMPT, SamplingParams(max_tokens=1), has_progress_bar=False)
            assert len(scored) == ids[0].num_prompt_tokens - 1
            assert sample.prompt_logprobs is not None
            assert len(sample.prompt_logprobs) == len(scored)
            for value, entry in zip(sample.prompt_logprobs, scored, strict=True):
                assert any(value == pytest.approx(top["logprob"]) for top in entry.values())


@pytest.mark.parametrize(
    "fields", [f for f in HONOURED if not {"logprobs", "prompt_logprobs"} & {*f}], ids=str
)
def test_a_chat_is_the_same(tiny_server: Any, llm: LLM, fields: dict[str, Any]) -> None:
    body = _body(fields) | {"messages": MESSAGES}
    status, response = tiny_server.post("/v1/chat/completions", body)
    assert status == 200, response
    samples = llm.chat(MESSAGES, SamplingParams(**BASE | fields), has_progress_bar=False)
    for sample, choice in zip(samples, response["choices"], strict=True):
        assert sample.message is not None
        assert sample.message["content"] == choice["message"]["content"]
        assert sample.token_ids == choice["token_ids"]
        assert (sample.finish_reason, sample.stop_reason) == (
            choice["finish_reason"],
            choice["stop_reason"],
        )


def test_a_named_end_of_sequence_id_is_the_stop_reason(tiny_server: Any, llm: LLM) -> None:
    eos = llm.text.stop_token_ids[0]
    fields: dict[str, Any] = {"logit_bias": {eos: 100.0}, "temperature": 0.0}
    for named, stop_reason in (({}, None), ({"stop_token_ids": [eos]}, eos)):
        body = _body(fields | named) | {"prompt": PROMPT}
        (choice,) = tiny_server.post("/v1/completions", body)[1]["choices"]
        params = SamplingParams(**BASE | fields | named)
        (sample,) = llm.generate(PROMPT, params, has_progress_bar=False)
        assert choice["stop_reason"] == sample.stop_reason == stop_reason
        assert choice["finish_reason"] == sample.finish_reason == "stop"


@pytest.mark.parametrize("fields", REFUSED, ids=str)
def test_a_refusal_names_the_same_field(tiny_server: Any, llm: LLM, fields: dict[str, Any]) -> None:
    status, response = tiny_server.post("/v1/completions", _body(fields) | {"prompt": PROMPT})
    assert status == 400, response
    with pytest.raises(RequestRejected) as caught:
        llm.generate(PROMPT, SamplingParams(**BASE | fields), has_progress_bar=False)
    param = response["error"]["param"].split("[")[0].split(".")[0]
    assert caught.value.field.split(".")[0] == param
    assert param in str(caught.value)
