"""The guide to custom policies, followed step by step in an empty folder."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from openinfer_sim import trace_kinds


@pytest.fixture(scope="module")
def guide(follow_guide, tmp_path_factory):
    """The package that the guide develops."""
    return follow_guide("scheduler", tmp_path_factory.mktemp("my-scheduler"))


def _environment(guide):
    return {"PYTHONPATH": os.pathsep.join([str(guide.site), *_python_path()])}


def _python_path():
    return filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))


# The outer run's options may belong to a plugin that is not installed there.
_PLAIN_PYTEST = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
"""Readers have none of our plugins, and importing those takes longer than all these tests."""


def _run(command, folder, **environment):
    program, *arguments = shlex.split(command)
    module = {"openinfer": ["-m", "openinfer"], "python": []}[program]
    return subprocess.run(
        [sys.executable, *module, *arguments],
        cwd=folder,
        env={**os.environ, "HF_HUB_OFFLINE": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


def test_the_policy_takes_less_than_100_lines(guide):
    assert set(guide.files) == {
        "pyproject.toml",
        "my_scheduler/__init__.py",
        "test_my_scheduler.py",
    }
    assert sum(len(text.splitlines()) for text in guide.files.values()) < 100


def test_its_tests_pass_and_can_fail(guide):
    folder, (test, _, _) = guide.folder, guide.commands
    done = _run(test, folder, **_PLAIN_PYTEST)
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout
    broken = folder / "broken"
    shutil.copytree(folder / "my_scheduler", broken / "my_scheduler")
    shutil.copy(folder / "test_my_scheduler.py", broken)
    source = broken / "my_scheduler/__init__.py"
    code = source.read_text()
    source.write_text(code.replace("return sorted(sequences, key=rank)", "return sequences"))
    done = _run(test, broken, **_PLAIN_PYTEST)
    assert done.returncode == 1
    assert "test_the_short_one_goes_first" in done.stdout


def test_the_simulator_puts_it_beside_fcfs(guide):
    _, simulate, _ = guide.commands
    done = _run(simulate, guide.folder)
    assert done.returncode == 0, done.stderr
    rows = {line[:20].strip(): line[20:].split() for line in done.stdout.splitlines()[1:]}
    assert rows[""] == ["fcfs", "my_scheduler:ShortAnswers"]
    fcfs, mine = map(float, rows["TTFT p50, ms"])
    assert mine < fcfs / 5, "short answers do not wait behind long ones"


def test_once_installed_it_has_a_name(guide):
    code = "from openinfer_scheduler import installed_policies as names; print(names())"
    command = shlex.join(["python", "-c", code])
    for environment, is_known in ((_environment(guide), True), ({}, False)):
        done = _run(command, guide.folder, **environment)
        assert ("short-answers" in done.stdout) == is_known, (done.stdout, done.stderr)


def _completion_order(server, lengths):
    """Returns the order in which requests of these lengths complete after the slot is occupied."""
    completed = []

    def complete(num_tokens):
        answer = server.client.completions.create(
            model="tiny", prompt="Once", max_tokens=num_tokens, extra_body={"ignore_eos": True}
        )
        assert answer.usage.completion_tokens == num_tokens
        completed.append(num_tokens)

    def wait_for(field, value):
        deadline = time.monotonic() + 10
        while server.load()[field] != value:
            assert time.monotonic() < deadline, server.load()
            time.sleep(0.01)

    with ThreadPoolExecutor(len(lengths) + 1) as pool:
        futures = [pool.submit(complete, 1500)]
        wait_for("num_running", 1)
        for num_tokens in lengths:
            futures.append(pool.submit(complete, num_tokens))
            time.sleep(0.1)
        wait_for("num_waiting", len(lengths))
        for future in futures:
            future.result()
    return completed[1:]


@pytest.mark.parametrize(
    ("policy", "engine", "order"),
    [
        ("fcfs", "sim", [400, 300, 200, 100]),
        ("short-answers", "sim", [100, 200, 300, 400]),
        pytest.param(
            *("short-answers", "the built-in model", [100, 200, 300, 400]), marks=pytest.mark.long
        ),
    ],
)
def test_the_real_server_completes_in_its_order(start_server, guide, policy, engine, order):
    flags = shlex.split(guide.commands[2])[2:]
    flags[flags.index("short-answers")] = policy
    if engine == "sim":
        flags += ["--sim-model", "qwen3-0_6b"]
    else:
        at = flags.index("--engine")
        del flags[at : at + 2]
    server = start_server(*flags, "--max-num-seqs", "1", env=_environment(guide))
    assert _completion_order(server, [400, 300, 200, 100]) == order


def test_every_option_of_every_trace_has_its_row():
    """The guide's defaults are those of the functions that make the traces."""
    page = (Path(__file__).parents[1] / "docs/guides/scheduler.md").read_text(encoding="utf-8")
    section = page.partition("### Traces")[2].partition("## ")[0]
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| `(\w+)` \| (\S*) +\| .+ \|$", section, re.M)
    written = {
        (kind, option): default
        for kinds, option, default in rows
        for kind in re.findall(r"\w+", kinds)
    }
    assert written == {
        (kind, option): "" if default in ("", None) else str(default).removesuffix(".0")
        for kind, options in trace_kinds().items()
        for option, default in options.items()
    }
