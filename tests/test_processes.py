"""Front, engine and template processes: placement, crashes, draining, and logged messages."""

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import openai
import psutil
import pytest

from openinfer.options._http_options import HttpOptions
from openinfer.options._text_options import TextOptions
from openinfer.serve._front import FrontProcesses, FrontSpec
from openinfer_frontend import SAME_SIGNAL_S, CounterPages, bind
from openinfer_testing import wait_until
from openinfer_tiny import CHECKPOINT

_MODELLED = ("--engine", "sim", "--sim-model", "qwen3-0_6b")
"""Flags that run the same processes over a simulated device, which is fast."""


def _has_torch(process: psutil.Process) -> bool:
    return any("torch" in mapping.path for mapping in process.memory_maps())


def test_torch_is_in_the_engine_process_alone(tiny_server):
    assert _has_torch(tiny_server.engine)
    front = psutil.Process(tiny_server.process.pid)
    assert not _has_torch(front)
    assert front.memory_info().rss < 200e6


def test_the_front_end_runs_with_torch_blocked():
    code = (
        "import sys\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('torch', 'triton', 'transformers'):\n"
        "            raise ImportError('blocked: ' + name)\n"
        "sys.meta_path.insert(0, Block())\n"
        "from openinfer.launch._prepare import prepare\n"
        "import openinfer.serve._server, openinfer.serve._front\n"
        "import openinfer_frontend, openinfer_text\n"
        "prepared = prepare(None, {})\n"
        "openinfer_text.TextModel.from_folder(prepared.model.path)\n"
        "assert prepared.plan.vocab_size > 0\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


_SAMPLES_FRAMES = """
import os, signal, sys, threading
if "openinfer_engine" in sys.orig_argv:
    def sample(number, step):
        own = threading.get_ident()
        for thread, frame in (sys._current_frames() | {own: step}).items():
            name = "step" if thread == own else "other"
            os.write(samples, f"{name} {frame.f_code.co_qualname}\\n".encode())
    samples = os.open(__file__ + ".txt", os.O_WRONLY | os.O_CREAT)
    signal.signal(signal.SIGUSR1, sample)
"""


def test_under_load_the_step_thread_alone_runs_python(start_server, tmp_path):
    """A signal handler on the engine's main thread records the stack of each thread."""
    code = tmp_path / "sitecustomize.py"
    code.write_text(_SAMPLES_FRAMES)
    server = start_server(env={"PYTHONPATH": str(tmp_path)})
    engine = server.engine
    with ThreadPoolExecutor(8) as pool:
        request = _complete(server, max_tokens=200)
        answers = [pool.submit(urllib.request.urlopen, request) for _ in range(8)]
        wait_until(lambda: server.load()["num_running"] == 8)
        while not any(answer.done() for answer in answers):
            engine.send_signal(signal.SIGUSR1)
            time.sleep(0.01)
        assert all(answer.result().status == 200 for answer in answers)
    seen = [line.split() for line in Path(f"{code}.txt").read_text().splitlines()]
    assert sum(thread == "step" for thread, _ in seen) > 20
    # A pool's threads stay, asleep in its queue.
    assert {where for thread, where in seen if thread == "other"} <= {"_worker"}


def _complete(server, **fields):
    body = {"model": "tiny", "prompt": "x", "max_tokens": 1500, "ignore_eos": True} | fields
    return urllib.request.Request(
        server.url + "/v1/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )


def test_a_stream_goes_on_when_its_engine_was_killed(start_server):
    server = start_server("--dtype", "float32")
    fields = {"temperature": 1.0, "seed": 5, "max_tokens": 300}
    with urllib.request.urlopen(_complete(server, **fields), timeout=60) as whole:
        expected = json.loads(whole.read())["choices"][0]["text"]
    engine = server.engine
    with urllib.request.urlopen(_complete(server, stream=True, **fields), timeout=60) as stream:
        lines = [stream.readline()]
        engine.send_signal(signal.SIGKILL)
        lines += stream.read().splitlines()
    events = [line[6:] for line in lines if line.startswith(b"data: ")]
    assert events.pop() == b"[DONE]"
    choices = [json.loads(event)["choices"][0] for event in events]
    assert "".join(choice["text"] for choice in choices) == expected, "seeds are counted on"
    assert choices[-1]["finish_reason"] == "length"
    assert server.engine.pid != engine.pid
    server.assert_idle()


def test_an_engine_killed_mid_stream_fails_clearly_and_comes_back(start_server):
    server = start_server("--resume-timeout-s", "0")
    engine = server.engine
    with urllib.request.urlopen(_complete(server, stream=True), timeout=30) as stream:
        stream.readline()
        engine.send_signal(signal.SIGKILL)
        rest = stream.read().decode()
    events = [line[6:] for line in rest.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    assert "error" in json.loads(events[-2])
    status, answer = server.post("/v1/completions", {"model": "tiny", "prompt": "x"})
    assert (status, bool(answer.get("error"))) in {(503, True), (200, False)}
    wait_until(lambda: server.get("/ready")[0] == 200)
    assert server.post("/v1/completions", {"model": "tiny", "prompt": "x"})[0] == 200
    assert server.engine.pid != engine.pid
    server.assert_idle()


def test_keys_close_the_api_in_every_front_process(start_server):
    server = start_server("--api-server-count", "2", env={"OPENINFER_API_KEY": "k1"})
    client = server.client.with_options(api_key="k1")
    for _ in range(12):
        with pytest.raises(openai.AuthenticationError):
            server.client.models.list()
        assert client.models.list().data[0].id == "tiny"
    assert server.get("/ready")[0] == 200
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(timeout=60) == 0


def test_sigterm_lets_the_running_request_end(start_server):
    server = start_server()
    request = _complete(server, stream=True, max_tokens=400)
    engine = server.engine
    with urllib.request.urlopen(request, timeout=30) as stream:
        stream.readline()
        server.process.send_signal(signal.SIGTERM)
        events = [line for line in stream.read().decode().splitlines() if line.startswith("data: ")]
    assert events[-1] == "data: [DONE]"
    assert any('"finish_reason":"length"' in event for event in events)
    assert server.process.wait(timeout=30) == 0
    assert not engine.is_running()


@pytest.mark.parametrize("arguments", [(), (*_MODELLED, "--api-server-count", "2")])
def test_ctrl_c_on_a_terminal_drains_and_restarts_nobody(start_server, arguments):
    server = start_server(*arguments, has_own_group=True)
    processes = psutil.Process(server.process.pid).children(recursive=True)
    request = _complete(server, stream=True, max_tokens=800)
    with urllib.request.urlopen(request, timeout=30) as stream:
        stream.readline()
        os.killpg(server.process.pid, signal.SIGINT)
        events = [line for line in stream.read().decode().splitlines() if line.startswith("data: ")]
    assert events[-1] == "data: [DONE]"
    assert any('"finish_reason":"length"' in event for event in events)
    assert server.process.wait(timeout=60) == 0
    assert not any(process.is_running() for process in processes)
    said = "\n".join(server.log)
    assert "starting another" not in said
    assert "Traceback" not in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_is_passed_on_again_drains(start_server, number):
    """The signal reaches every process at once, as a shell or a process supervisor sends it."""
    server = start_server(*_MODELLED, "--api-server-count", "2", has_own_group=True)
    fronts = [psutil.Process(server.process.pid), *server.children("openinfer.serve._front")]
    requests = [_complete(server, stream=True, max_tokens=800) for _ in fronts]
    # One request for each front process: while one is stopped, the other one accepts.
    fronts[1].suspend()
    with urllib.request.urlopen(requests[0], timeout=30) as first:
        first.readline()
        fronts[1].resume()
        fronts[0].suspend()
        with urllib.request.urlopen(requests[1], timeout=30) as second:
            second.readline()
            fronts[0].resume()
            for _ in range(5):
                os.killpg(server.process.pid, number)
                fronts[1].send_signal(number)
                time.sleep(0.02)
            for stream in (first, second):
                assert stream.read().endswith(b"data: [DONE]\n\n")
    assert server.process.wait(timeout=60) == 0
    said = "\n".join(server.log)
    assert "cut off" not in said
    assert "starting another" not in said
    assert "Traceback" not in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_server_that_is_signalled_twice_ends_well(start_server, number):
    server = start_server(*_MODELLED, has_own_group=True)
    begun = time.monotonic()
    while time.monotonic() - begun < SAME_SIGNAL_S - 0.1 and server.process.poll() is None:
        os.killpg(server.process.pid, number)
        time.sleep(0.02)
    assert server.process.wait(timeout=30) == 0
    assert "Traceback" not in "\n".join(server.log)


def test_ctrl_c_while_it_starts_ends_it():
    with subprocess.Popen(
        [sys.executable, "-m", "openinfer", "serve", "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        parent = psutil.Process(process.pid)
        wait_until(parent.children)
        (engine,) = parent.children()
        os.killpg(process.pid, signal.SIGINT)
        _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr
    wait_until(lambda: not engine.is_running())


def test_the_engine_ends_when_its_parent_is_killed(start_server):
    server = start_server()
    engine = server.engine
    server.process.kill()
    server.expected_status = -signal.SIGKILL
    server.process.wait()
    wait_until(lambda: not engine.is_running() or engine.status() == psutil.STATUS_ZOMBIE)


@pytest.mark.long
def test_a_server_whose_engine_cannot_be_restarted_ends_with_status_1(start_server, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(CHECKPOINT.path(), folder)
    server = start_server(str(folder))
    shutil.rmtree(folder)
    server.expected_status = 1
    server.engine.kill()
    assert server.process.wait(60) == 1
    assert any("does not start again" in line and str(folder) in line for line in server.log)


def test_two_front_processes_share_the_port_and_the_engine(start_server):
    server = start_server("--api-server-count", "2", "--max-num-seqs", "8")
    (other,) = server.children("openinfer.serve._front")
    for _ in range(40):
        answer = server.post(
            "/v1/completions", {"model": "tiny", "prompt": "Hello", "max_tokens": 3}
        )
        assert answer[0] == 200
    assert not _has_torch(other)
    server.assert_idle()
    # While the first front process is stopped, the second one still serves.
    psutil.Process(server.process.pid).suspend()
    try:
        served = [
            server.post("/v1/completions", {"model": "tiny", "prompt": "Hi", "max_tokens": 2})[0]
            for _ in range(3)
        ]
    finally:
        psutil.Process(server.process.pid).resume()
    assert served == [200] * 3


@pytest.mark.parametrize("reaches_all", [False, True])
def test_a_drain_begins_in_every_front_process_at_once(start_server, reaches_all):
    # A step reads 65 GB of weights in 15 ms: the response takes 9 s, and a process ends meanwhile.
    server = start_server(
        *("--engine", "sim", "--sim-model", "qwen3-32b", "--sim-device", "h200"),
        *("--api-server-count", "2"),
    )
    (other,) = server.children("openinfer.serve._front")
    request = _complete(server, stream=True, max_tokens=600)
    # The first front process must serve the long request: the other one is stopped.
    other.suspend()
    with urllib.request.urlopen(request, timeout=30) as stream:
        stream.readline()
        other.resume()
        if reaches_all:
            other.terminate()
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: not other.is_running() or other.status() == psutil.STATUS_ZOMBIE)
        assert server.get("/ready")[0] == 503, "the first front is still draining"
        assert stream.read().endswith(b"data: [DONE]\n\n")
    assert server.process.wait(timeout=30) == 0
    assert not any("starting another" in line for line in server.log)


def test_a_second_signal_is_told_to_every_client(start_server):
    server = start_server(
        *("--engine", "sim", "--sim-model", "qwen3-32b", "--sim-device", "h200"),
        *("--api-server-count", "2", "--log-level", "debug"),
    )
    (other,) = server.children("openinfer.serve._front")
    requests = [_complete(server, stream=True, max_tokens=1500) for _ in range(2)]
    # One request for each front process: while one is stopped, the other one accepts.
    other.suspend()
    with urllib.request.urlopen(requests[0], timeout=30) as first:
        first.readline()
        other.resume()
        psutil.Process(server.process.pid).suspend()
        with urllib.request.urlopen(requests[1], timeout=30) as second:
            second.readline()
            psutil.Process(server.process.pid).resume()
            server.process.send_signal(signal.SIGINT)
            wait_until(lambda: sum("draining 1 request" in line for line in server.log) == 2)
            time.sleep(SAME_SIGNAL_S)
            server.process.send_signal(signal.SIGINT)
            for stream in (first, second):
                error, end = [line[6:] for line in stream.read().split(b"\n") if line][-2:]
                assert json.loads(error)["error"]["message"] == "the server is shutting down"
                assert end == b"[DONE]"
    assert server.process.wait(timeout=30) == 0
    wait_until(lambda: sum(" 200 in " in line for line in server.log) == 2)
    assert sum("1 request cut off after" in line for line in server.log) == 2
    log = server.log[next(i for i, line in enumerate(server.log) if "ready in" in line) :]
    assert all(re.match(r"\d\d:\d\d:\d\d [A-Z]+ ", line) for line in log), log


def test_an_engine_is_reached_over_tcp_loopback(start_server, tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    start_server(*_MODELLED, "--engine-address", f"tcp:127.0.0.1:{port}")
    code = (
        "import asyncio\n"
        "from openinfer_contract import GenerateRequest, StopRules, pack_ids, stream\n"
        "from openinfer_engine import RemoteEngine\n"
        "async def main():\n"
        f"    engine = await RemoteEngine.connect('tcp:127.0.0.1:{port}')\n"
        "    request = GenerateRequest(request_id='a', prompt_token_ids=pack_ids([5, 6, 7]),\n"
        "                              stop=StopRules(max_tokens=4, ignore_eos=True))\n"
        "    events = [event async for event in stream(engine, request)]\n"
        "    assert sum(event.num_tokens for event in events) == 4\n"
        "    engine.disconnect()\n"
        "asyncio.run(main())\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
    assert asyncio.run(_ask_a_front_process(f"tcp:127.0.0.1:{port}")) == 200


async def _ask_a_front_process(engine_address):
    """Returns the status of a response from an extra front process for the engine at an address."""
    spec = FrontSpec(
        model_path=str(CHECKPOINT.path()),
        text=TextOptions(),
        http=HttpOptions(served_model_names=("tiny",)),
        version="0",
    )
    with bind("127.0.0.1", 0) as sock, closing(CounterPages(2)) as counters:
        server = SimpleNamespace(url="http://{}:{}".format(*sock.getsockname()))
        fronts = FrontProcesses(spec, sock, engine_address, 1, counters)
        await fronts.start()
        try:
            return await asyncio.to_thread(_first_status, _complete(server, max_tokens=4))
        finally:
            await fronts.stop()


def _first_status(request, timeout_s=30.0):
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as answer:
                return answer.status
        except urllib.error.URLError:
            assert time.monotonic() < deadline, "it does not listen"
            time.sleep(0.05)


def test_a_port_in_use_is_one_sentence(call_openinfer):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        before = psutil.Process().children()
        status, _, stderr = call_openinfer("serve", "--port", port)
    assert status == 1
    assert "--port" in stderr
    assert "Traceback" not in stderr
    assert psutil.Process().children() == before, "an engine's process is left"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-tp", "2"), ("tensor_parallel_size",)),
        (("--max-model-len", "10M"), ("max_model_len",)),
        (("--kv-cache-dtype", "fp8"), ("--kv-cache-dtype", "only auto")),
        (("--max-num-seq", "3"), ("--max-num-seqs",)),
        (("--kv-cache-memory-bytes", "1k"), ("--kv-cache-memory-bytes",)),
        (("--scheduling-policy", "best"), ("best", "fcfs")),
        (("--scheduling-policy", "no_such_module:Best"), ("no_such_module", "fcfs")),
        (("--target-itl-ms", "0"), ("target_itl_ms", "positive")),
        (("--max-long-partial-prefills", "2"), ("--max-long-partial-prefills", "not available")),
        (("--config", "nothing.yaml"), ("nothing.yaml",)),
        (("--port", "65536"), ("--port", "65535")),
        (("-pp", "2"), ("-pp", "only 1")),
        (("--block-size", "0"), ("block_size",)),
        (("--engine-address", "nowhere"), ("--engine-address", "nowhere", "unix:PATH")),
        (("--kv-events-config", '{"foo": 1}'), ("--kv-events-config", "`foo`")),
        (("--chat-template", "none.jinja"), ("none.jinja",)),
        (("tiny", "--model", "other"), ("tiny", "other")),
        (("--attention-backend", "odd"), ("--attention-backend", "reference", "odd")),
        (("--enable-prefix-caching", "a", "b"), ("unexpected argument", "a")),
    ],
)
def test_what_cannot_be_served_is_one_sentence(call_openinfer, arguments, words):
    status, _, stderr = call_openinfer("serve", "--port", "0", *arguments)
    _assert_one_sentence(status, stderr, words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("no-such-model",), ("no-such-model", "tiny")),
        (("nobody/nothing",), ("nobody/nothing", "HF_HUB_OFFLINE")),
        (("--device", "cuda"), ("cuda",)),
    ],
)
def test_so_it_is_on_a_terminal(run_openinfer, arguments, words):
    status, _, stderr = run_openinfer("serve", "--port", "0", *arguments)
    _assert_one_sentence(status, stderr, words)


def _assert_one_sentence(status, stderr, words):
    assert status == 1, stderr
    last = stderr.strip().splitlines()[-1]
    assert last.startswith("openinfer: ")
    assert all(word in last for word in words), last
    assert "Traceback" not in stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--max-model-len", "1x"), "'1x' is not a count such as 4096"),
        (("--device", "tpu"), "invalid choice: 'tpu'"),
        (("--quantization", "fp8"), "invalid choice: 'fp8' (choose from 'int8', 'int4')"),
        (("--port",), "expected one argument"),
    ],
)
def test_what_cannot_be_parsed_says_why(call_openinfer, arguments, words):
    status, _, stderr = call_openinfer("serve", *arguments)
    assert status == 2
    assert words in stderr


def test_a_config_file_gives_flags_and_the_command_line_wins(start_server, tmp_path):
    file = tmp_path / "server.yaml"
    file.write_text("served-model-name: [one, two]\nmax-model-len: 1k\nmax_num_seqs: 3\n")
    server = start_server(*_MODELLED, "--config", str(file), "--max-model-len", "512")
    models = server.client.models.list().data
    assert [model.id for model in models] == ["one", "two"]
    assert models[0].model_extra["max_model_len"] == 512


def test_an_unknown_key_in_a_config_file_is_named(call_openinfer, tmp_path):
    file = tmp_path / "server.yaml"
    file.write_text("max-modle-len: 1k\n")
    status, _, stderr = call_openinfer("serve", "--port", "0", "--config", str(file))
    assert status == 1
    assert "did you mean max-model-len?" in stderr


def test_a_default_that_the_engine_cannot_honour_costs_no_client_a_400(start_server, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(CHECKPOINT.path(), folder)
    (folder / "generation_config.json").write_text('{"min_p": 1.5, "top_p": 0.9}')
    server = start_server(str(folder), "--api-server-count", "2")
    warnings = [line for line in server.log if "WARNING" in line]
    assert len(warnings) == 1
    assert "min_p 1.5" in warnings[0]
    body = {"model": "model", "prompt": "Hello", "max_tokens": 2}
    for process in (None, psutil.Process(server.process.pid)):
        # While the first front process is stopped, only the second one serves.
        if process is not None:
            process.suspend()
        try:
            assert server.post("/v1/completions", body)[0] == 200
            asked = server.post("/v1/completions", body | {"min_p": 1.5})
            assert (asked[0], asked[1]["error"]["param"]) == (400, "min_p")
        finally:
            if process is not None:
                process.resume()
