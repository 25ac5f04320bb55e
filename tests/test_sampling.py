"""Sampling fields over HTTP, streamed and whole, alone and combined."""

import json
import math
import urllib.request

import pytest

PROMPT = "Once upon a time"
PATHS = {
    "/v1/completions": {"model": "tiny", "prompt": PROMPT},
    "/v1/chat/completions": {"model": "tiny", "messages": [{"role": "user", "content": PROMPT}]},
}
NUM_TOKENS = 24
GREEDY = {"temperature": 0, "max_tokens": NUM_TOKENS, "ignore_eos": True}
A, C = 300, 302
FEW = list(range(300, 340))
"""Returns ids without a meaning for the model."""


def _events(url, body):
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=30) as response:
        lines = response.read().decode().splitlines()
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    return [json.loads(text) for text in data[:-1]]


@pytest.fixture(params=["whole", "streamed"])
def ask(request, tiny_server):
    """Function `ask(path, **fields)` that returns ids, finish and stop reason of choice 0."""

    def whole(path, body):
        status, answer = tiny_server.post(path, body)
        assert status == 200, answer
        (choice,) = answer["choices"]
        return choice["token_ids"], choice["finish_reason"], choice["stop_reason"]

    def streamed(path, body):
        ids, ends = [], []
        for event in _events(tiny_server.url + path, body | {"stream": True}):
            for choice in event["choices"]:
                ids += choice.get("token_ids") or []
                if choice["finish_reason"]:
                    ends.append((choice["finish_reason"], choice["stop_reason"]))
        (end,) = ends
        return ids, *end

    def run(path, **fields):
        body = PATHS[path] | {"return_token_ids": True} | fields
        return (whole if request.param == "whole" else streamed)(path, body)

    return run


@pytest.fixture(scope="module", params=PATHS)
def path(request):
    return request.param


@pytest.fixture(scope="module")
def greedy(_tiny_server, path):
    """Token ids of greedy decoding without further sampling fields."""
    status, answer = _tiny_server.post(path, PATHS[path] | GREEDY | {"return_token_ids": True})
    assert status == 200
    return answer["choices"][0]["token_ids"]


@pytest.fixture(scope="module")
def eos(_tiny_server):
    """Returns the id that ends a turn of the built-in model."""
    _, answer = _tiny_server.post(
        "/v1/chat/completions",
        PATHS["/v1/chat/completions"]
        | {"temperature": 0, "max_tokens": 200, "return_token_ids": True},
    )
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "stop"
    return choice["token_ids"][-1]


def test_no_temperature_and_top_k_of_one_are_greedy(ask, path, greedy):
    for fields in ({"temperature": 0}, {"temperature": 1.5, "top_k": 1, "seed": 1}):
        assert ask(path, **GREEDY | fields)[0] == greedy


@pytest.mark.parametrize("fields", [{"top_p": 1e-6}, {"min_p": 1.0}], ids=str)
def test_a_narrow_filter_leaves_the_likeliest_and_its_ties(tiny_server, fields):
    path = "/v1/chat/completions"
    body = PATHS[path] | GREEDY | {"temperature": 1.5, "seed": 2, "logprobs": True}
    _, answer = tiny_server.post(path, body | {"top_logprobs": 1} | fields)
    for entry in answer["choices"][0]["logprobs"]["content"]:
        assert entry["logprob"] == entry["top_logprobs"][0]["logprob"]


def test_a_seed_repeats_and_another_differs(ask, path, greedy):
    fields = GREEDY | {"temperature": 2.0}
    first = ask(path, **fields, seed=11)[0]
    assert ask(path, **fields, seed=11)[0] == first
    assert first != ask(path, **fields, seed=12)[0]
    assert first != greedy


@pytest.mark.parametrize(
    "fields",
    [{"presence_penalty": 2.0}, {"frequency_penalty": 2.0}, {"repetition_penalty": 3.0}],
    ids=str,
)
def test_penalties_spread_the_draws(ask, path, fields):
    plain = ask(path, **GREEDY, allowed_token_ids=FEW)[0]
    ids = ask(path, **GREEDY, allowed_token_ids=FEW, **fields)[0]
    assert len(set(ids)) > len(set(plain))


def test_a_high_frequency_penalty_leaves_no_favourite(ask, path):
    ids = ask(path, **GREEDY, allowed_token_ids=FEW, frequency_penalty=2.0)[0]
    assert max(map(ids.count, ids)) <= NUM_TOKENS // 3


def test_logit_bias_and_allowed_ids_rule_the_draw(ask, path):
    fields = GREEDY | {"temperature": 2.0, "seed": 5}
    assert set(ask(path, **fields, logit_bias={str(C): 100})[0]) == {C}
    ids = ask(path, **fields, allowed_token_ids=FEW)[0]
    assert set(ids) <= set(FEW)
    assert len(set(ids)) > 1
    biased = ask(path, **fields, allowed_token_ids=FEW, logit_bias={str(ids[0]): -100})[0]
    assert ids[0] not in biased
    assert set(biased) <= set(FEW)


def test_bad_words_never_complete(ask, path, greedy, tiny_server):
    _, answer = tiny_server.post("/detokenize", {"model": "tiny", "tokens": greedy})
    words = answer["prompt"].split()[1:4]
    ids = ask(path, **GREEDY, bad_words=words)[0]
    _, answer = tiny_server.post("/detokenize", {"model": "tiny", "tokens": ids})
    assert ids != greedy
    assert not set(words) & set(answer["prompt"].split())


def test_min_tokens_holds_the_end_back_and_ignore_eos_passes_it(ask, path, eos):
    fields = {"temperature": 0, "max_tokens": NUM_TOKENS, "logit_bias": {str(eos): 100}}
    assert ask(path, **fields)[:2] == ([eos], "stop")
    ids, reason, _ = ask(path, **fields, min_tokens=5)
    assert (len(ids), ids[-1], reason) == (6, eos, "stop")
    assert eos not in ids[:-1]
    assert ask(path, **fields, ignore_eos=True)[:2] == ([eos] * NUM_TOKENS, "length")


def test_a_stop_token_id_ends_and_is_named(ask, path, greedy):
    at = greedy.index(greedy[5])
    ids, reason, stopped_by = ask(path, **GREEDY, stop_token_ids=[greedy[5]])
    assert (ids, reason, stopped_by) == (greedy[: at + 1], "stop", greedy[5])


def test_every_sample_has_a_seed_of_its_own(tiny_server, path):
    # Few tokens: one row rounds differently from three in bf16, and longer texts would differ.
    body = PATHS[path] | {"max_tokens": 4, "temperature": 2.0, "return_token_ids": True}
    _, three = tiny_server.post(path, body | {"n": 3, "seed": 20})
    samples = [choice["token_ids"] for choice in three["choices"]]
    assert len({tuple(ids) for ids in samples}) == 3
    _, second = tiny_server.post(path, body | {"seed": 21})
    assert second["choices"][0]["token_ids"] == samples[1]


def test_all_controls_together(ask, path):
    ids, reason, _ = ask(
        path, temperature=1.2, top_k=50, top_p=0.9, min_p=0.01, seed=3, repetition_penalty=1.1,
        presence_penalty=0.3, frequency_penalty=0.2, logit_bias={str(A): 2.0}, bad_words=["the"],
        min_tokens=8, max_tokens=8, stop_token_ids=[C],
    )  # fmt: skip
    assert (len(ids), reason) == (8, "length")
    assert C not in ids


def test_a_scored_prompt_has_the_logprobs_it_has_as_output(tiny_server, path):
    fields = {"logprobs": True, "top_logprobs": 3} if "chat" in path else {"logprobs": 3}
    status, drawn = tiny_server.post(path, PATHS[path] | GREEDY | fields)
    assert status == 200, drawn
    status, ids = tiny_server.post(path, PATHS[path] | GREEDY | {"return_token_ids": True})
    (choice,) = ids["choices"]
    prompt = choice.get("prompt_token_ids") or ids["prompt_token_ids"]
    output = choice["token_ids"]
    body = {"model": "tiny", "prompt": prompt + output, "max_tokens": 0, "echo": True}
    status, scored = tiny_server.post("/v1/completions", body | {"logprobs": 3})
    assert status == 200, scored
    assert scored["usage"]["completion_tokens"] == 0
    (choice,) = scored["choices"]
    found = choice["logprobs"]
    assert found["token_logprobs"][0] is None
    assert len(found["tokens"]) == len(prompt) + len(output)
    (drawn_choice,) = drawn["choices"]
    expected = (
        [entry["logprob"] for entry in drawn_choice["logprobs"]["content"]]
        if "chat" in path
        else drawn_choice["logprobs"]["token_logprobs"]
    )
    # In bf16, sums of one row differ from those of a chunk.
    assert found["token_logprobs"][len(prompt) :] == pytest.approx(expected, abs=0.1)
    assert [max(top.values()) for top in found["top_logprobs"][len(prompt) :]] == pytest.approx(
        expected, abs=0.1
    ), "greedy draws the likeliest"
    status, scored = tiny_server.post(
        "/v1/completions", body | {"prompt_logprobs": 3, "echo": False}
    )
    entries = scored["choices"][0]["prompt_logprobs"]
    assert [
        entry[str(token_id)]["logprob"]
        for token_id, entry in zip((prompt + output)[1:], entries[1:], strict=True)
    ] == pytest.approx(found["token_logprobs"][1:], abs=0.1)


def test_logprobs_by_id(tiny_server, path):
    fields = {"logprobs": True} if "chat" in path else {"logprobs": 0}
    body = PATHS[path] | {"max_tokens": 2, "return_tokens_as_token_ids": True} | fields
    status, answer = tiny_server.post(path, body | {"logprob_token_ids": [A, C]})
    assert status == 200, answer
    found = answer["choices"][0]["logprobs"]
    tops = (
        [{top["token"] for top in entry["top_logprobs"]} for entry in found["content"]]
        if "chat" in path
        else [
            set(top) - {name}
            for name, top in zip(found["tokens"], found["top_logprobs"], strict=True)
        ]
    )
    assert tops == [{f"token_id:{A}", f"token_id:{C}"}] * 2


def test_processed_logprobs_are_of_what_was_drawn_from(tiny_server, path):
    fields = {"logprobs": True, "top_logprobs": 2} if "chat" in path else {"logprobs": 2}
    body = PATHS[path] | {"max_tokens": 3, "allowed_token_ids": [A, C], "temperature": 0.7} | fields

    def totals(**more):
        status, answer = tiny_server.post(path, body | {"seed": 7} | more)
        assert status == 200, answer
        found = answer["choices"][0]["logprobs"]
        tops = (
            [[top["logprob"] for top in entry["top_logprobs"]] for entry in found["content"]]
            if "chat" in path
            else [sorted(top.values())[-2:] for top in found["top_logprobs"]]
        )
        return [sum(map(math.exp, top)) for top in tops]

    assert totals(logprobs_mode="processed") == pytest.approx([1.0] * 3, abs=1e-4)
    assert totals(logprobs_mode="raw") == totals() != pytest.approx([1.0] * 3, abs=1e-2)
