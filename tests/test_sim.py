"""The simulator as an engine of the real front end, and the simulator's command."""

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest

HELLO = [{"role": "user", "content": "Hello!"}]


def _stream(server, **options):
    """Returns the chunks of one chat with their arrival times in seconds."""
    stream = server.client.chat.completions.create(
        model="tiny",
        messages=HELLO,
        stream=True,
        stream_options={"include_usage": True},
        **options,
    )
    return [(time.monotonic(), chunk) for chunk in stream]


def _check_what_the_guide_says_of_it(server):
    page = (Path(__file__).parents[1] / "docs/guides/flags.md").read_text(encoding="utf-8")
    said = re.search(r"Fields that it cannot honour are(.*?)`tools`", page, re.DOTALL)
    function = {"type": "function", "function": {"name": "f"}}
    asked = {
        "logprobs": True,
        "prompt_logprobs": 1,
        "logit_bias": {"5": 1},
        "allowed_token_ids": [5],
        "bad_words": ["a"],
        "presence_penalty": 1,
        "frequency_penalty": 1,
        "repetition_penalty": 1.5,
        "min_tokens": 2,
        "response_format": {"type": "json_object"},
        "structured_outputs": {"regex": "a"},
    }
    assert re.findall(r"`(\w+)`", said[1]) == list(asked)
    strict = {"tools": [function | {"function": {"name": "f", "strict": True}}]}
    demanded = {"tools": [function], "tool_choice": "required"}
    for fields in (*({name: value} for name, value in asked.items()), strict, demanded):
        body = {"model": "tiny", "messages": HELLO, "max_tokens": 3} | fields
        status, answer = server.post("/v1/chat/completions", body)
        assert (status, answer["error"]["param"]) == (400, [*fields][-1]), answer
        assert "is not supported by this engine (sim)" in answer["error"]["message"]


def test_the_official_client_streams_from_a_modelled_device(start_server):
    server = start_server("--engine", "sim", "--sim-model", "qwen3-32b", "--sim-device", "h200")
    assert any("tiny by sim on modelled h200" in line for line in server.log)
    timed = _stream(server, max_tokens=30)
    chunks = [chunk for _, chunk in timed]
    assert chunks[-1].usage.completion_tokens == 30
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert len(text) > 30
    assert "<|" not in text, "random ids are never those of control tokens"
    # A step reads 65 GB of weights in 15 ms on the simulated device, at any load of this machine.
    assert timed[-1][0] - timed[0][0] > 29 * 0.014

    with pytest.raises(openai.BadRequestError) as refused:
        server.client.chat.completions.create(model="tiny", messages=HELLO, logprobs=True)
    assert refused.value.param == "logprobs"
    assert "logprobs is not supported by this engine (sim)" in refused.value.message
    _check_what_the_guide_says_of_it(server)

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: _stream(server, max_tokens=20), range(16)))
    assert {answer[-1][1].usage.completion_tokens for answer in answers} == {20}


def test_answers_end_by_themselves_where_a_length_is_modelled(start_server):
    server = start_server("--engine", "sim", "--sim-output-tokens", "10", "--seed", "1")
    answer = server.client.chat.completions.create(model="tiny", messages=HELLO, n=8)
    assert {choice.finish_reason for choice in answer.choices} == {"stop"}
    assert 8 <= answer.usage.completion_tokens < 400


def test_a_server_gives_up_what_takes_too_long(start_server):
    """The server's timeout holds for every request; a request's own deadline may be shorter."""
    server = start_server(
        *("--engine", "sim", "--sim-model", "qwen3-32b", "--sim-device", "h200"),
        *("--max-num-seqs", "1", "--request-timeout-s", "1"),
    )
    body = {"model": "tiny", "prompt": "Once", "max_tokens": 1000}  # some 15 s
    begun = time.monotonic()
    with ThreadPoolExecutor(2) as pool:  # the second one waits for the first one's slot
        for status, answer in pool.map(lambda _: server.post("/v1/completions", body), range(2)):
            assert (status, answer["error"]["param"]) == (408, None)
            assert answer["error"]["message"].endswith(": this server gives a request 1 s")
    assert 1.0 <= time.monotonic() - begun < 5.0

    status, answer = server.post("/v1/completions", body | {"deadline_ms": 50})
    assert (status, answer["error"]["param"]) == (408, "deadline_ms")
    status, answer = server.post("/v1/completions", body | {"deadline_ms": 60_000})
    assert (status, answer["error"]["param"]) == (408, None)
    with pytest.raises(openai.APIError, match="this server gives a request 1 s"):
        _stream(server, max_tokens=1000)
    status, _ = server.post("/v1/completions", body | {"max_tokens": 5})
    assert status == 200


def test_the_front_end_carries_a_crowd(start_server):
    """200 concurrent streams over a simulated device all get their tokens."""
    server = start_server("--engine", "sim", "--sim-model", "qwen3-0_6b")
    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(lambda _: _stream(server, max_tokens=30), range(200)))
    assert {answer[-1][1].usage.completion_tokens for answer in answers} == {30}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--engine", "nosuch"), "nosuch is not installed; installed are: sim"),
        (("--engine", "sim", "--model-line", "qwen3"), "--model-line"),
        (("--engine", "sim", "--sim-modle", "qwen3-4b"), "--sim-model"),
        (("--engine", "sim", "--attention-backend", "cpu"), "--attention-backend"),
        (("--engine", "sim", "--sim-model", "gpt-1"), "--sim-model"),
        (("--engine", "sim", "--device", "cuda"), "--device"),
        (("--sim-model", "qwen3-4b"), "--sim-model"),
    ],
)
def test_an_option_is_consumed_or_rejected(call_openinfer, arguments, named):
    status, stdout, stderr = call_openinfer("serve", *arguments)
    assert (status, stdout) == (1, "")
    assert named in stderr
    assert stderr.count("\n") == 1


def test_the_command_compares_draws_and_writes(run_openinfer, tmp_path):
    arguments = ("--policy", "fcfs", "--policy", "priority", "--trace", "poisson:duration=5")
    status, stdout, stderr = run_openinfer(
        "sim", *arguments, "--json", "reports.json", "--plot", "runs.png", cwd=tmp_path
    )
    assert status == 0, stderr
    assert stdout.splitlines()[1].split() == ["fcfs", "priority"]
    reports = json.loads((tmp_path / "reports.json").read_bytes())
    assert [report["policy"] for report in reports] == ["fcfs", "priority"]
    assert (tmp_path / "runs.png").read_bytes().startswith(b"\x89PNG")


def test_the_command_says_what_is_wrong_in_one_sentence(call_openinfer):
    status, _, stderr = call_openinfer("sim", "--trace", "poisson:rte=3")
    assert status == 1
    assert stderr == (
        "openinfer: trace poisson: unknown option 'rte'; known are: rate, duration, input, output, "
        "spread, shared, tenants, skew, priorities\n"
    )
