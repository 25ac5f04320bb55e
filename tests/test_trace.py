"""Traces of the real server hold every request in every process, however the process ends."""

import itertools
import json
import threading
import urllib.request

import pytest

from openinfer_testing import read_trace, wait_until


def _complete(server, name, **more):
    body = {"model": "tiny", "prompt": "Once upon a time", "max_tokens": 12, "ignore_eos": True}
    headers = {"x-request-id": name, "traceparent": _trace_parent(name), "x-session-id": "talk"}
    request = urllib.request.Request(
        server.url + "/v1/completions",
        json.dumps(body | more).encode(),
        {"content-type": "application/json"} | headers,
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return response.read()


def _trace_parent(name):
    return f"00-{name.encode().hex():0>32}-00f067aa0ba902b7-01"


def _check_request(trace, name, *, max_tokens=12):
    """Checks that both trace the request, and that the front's span covers the engine's."""
    whole, *parts = trace.on(f"front client {name}")
    assert whole.name == "/v1/completions"
    names = ["read", "tokenize", "submit", "first byte", "answer"]
    assert [part.name for part in parts] == names
    for one, two in itertools.pairwise(parts):
        assert one.end == two.begin
    inner = trace.on(f"engine request cmpl-{name}")
    assert [span.name for span in inner if span.depth == 1] == ["queued", "prefill", "decode"]
    assert inner[0].args["output_tokens"] == max_tokens
    assert inner[0].args["traceparent"] == _trace_parent(name)
    assert inner[0].args["session_id"] == "talk"
    assert whole.holds(inner[0])
    # The engine's span begins after tokenizing, and its first token precedes the first byte.
    assert parts[1].begin <= inner[0].begin
    (first,) = [at for track, what, at in trace.notes if track == inner[0].track]
    assert inner[0].begin < first < parts[3].end
    return inner[0]


def _check_steps(trace):
    steps = [span for span in trace.on("engine steps") if not span.depth]
    numbers = [step.args["step"] for step in steps]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), "a step is missing"
    forwards = {
        span.args["step"]: span for span in trace.on("engine cpu") if span.name == "forward"
    }
    for step in steps:
        inner = [s for s in trace.spans if s.depth == 1 and s.track == step.track and step.holds(s)]
        assert {"plan", "launch", "sample", "wait", "apply"} <= {phase.name for phase in inner}
        if step.name != "no rows":
            assert step.holds(forwards[step.args["step"]])
    return steps


def test_a_servers_traces(start_server, tmp_path):
    first = tmp_path / "first.json"
    folder = tmp_path / "traces"
    folder.mkdir()
    server = start_server("--trace-file", str(first), "--trace-dir", str(folder))
    names = [f"name{i}" for i in range(6)]
    threads = [threading.Thread(target=_complete, args=(server, name)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert server.load()["is_tracing"]
    wait_until(lambda: first.read_bytes().count(b'"answer"') == 2 * len(names), timeout_s=60)
    trace = read_trace(first)
    assert _check_steps(trace)[0].args["step"] == 1
    for name in names:
        _check_request(trace, name)

    # A killed engine leaves the file written so far; the next engine writes another file.
    stream = server.client.completions.create(
        model="tiny", prompt="x", max_tokens=400, stream=True, extra_body={"ignore_eos": True}
    )
    with stream:
        for _, _ in zip(range(100), stream, strict=False):
            pass
        events = json.loads(first.read_bytes())["traceEvents"]
        assert len(events) > 6 * 10, "nothing is written while requests run"
        engine = server.engine
        engine.kill()
        engine.wait(10)
        num_kept = len(json.loads(first.read_bytes())["traceEvents"])
        assert num_kept >= len(events)
        for _ in stream:
            pass
    second = tmp_path / "first.1.json"
    wait_until(lambda: server.get("/ready")[0] == 200, timeout_s=60)
    server.assert_idle()
    assert second.exists()

    assert server.post("/start_profile", None)[0] == 409
    assert server.post("/stop_profile", None) == (200, {"is_tracing": False, "file": second.name})
    assert server.post("/stop_profile", None)[0] == 409
    read_trace(second)
    assert not server.load()["is_tracing"]
    _complete(server, "between")
    status, started = server.post("/start_profile", None)
    assert (status, started["is_tracing"]) == (200, True)
    _complete(server, "inside")

    # After SIGTERM during a request, the request ends and the trace holds its end.
    last = threading.Thread(target=_complete, args=(server, "last"), kwargs={"max_tokens": 300})
    last.start()
    wait_until(lambda: server.load()["num_running"], timeout_s=60)
    assert server.stop() == 0
    last.join()
    (third,) = folder.iterdir()
    assert third.name == started["file"]
    trace = read_trace(third)
    _check_steps(trace)
    assert not [span for span in trace.spans if "between" in span.track]
    _check_request(trace, "inside")
    _check_request(trace, "last", max_tokens=300)


@pytest.mark.parametrize("flag", ["--trace-file", "--trace-dir"])
def test_a_place_that_is_not_there_stops_the_start(run_openinfer, tmp_path, flag):
    path = tmp_path / "nowhere" / "t.json"
    status, _, errors = run_openinfer("serve", "--port", "0", flag, str(path))
    assert status == 1
    assert "nowhere" in errors.splitlines()[-1]
    assert "Traceback" not in errors
