"""Tools that really run."""

import json
import os
import signal
import subprocess
import threading
import time

import pytest

import openinfer.terminal._chat_tools as chat_tools
from openinfer import UsageError
from openinfer.terminal._chat_tools import TOOLS, parse_tools, run_call


def _python(code):
    return run_call(TOOLS["python"], json.dumps({"code": code}))


def _shell(command):
    return run_call(TOOLS["shell"], json.dumps({"command": command}))


def test_tools_are_named_with_commas():
    assert [tool.name for tool in parse_tools("shell, python,shell")] == ["shell", "python"]
    assert parse_tools("") == parse_tools("none") == ()
    with pytest.raises(UsageError, match="no tool 'browser'; available: python, shell"):
        parse_tools("python,browser")


def test_definitions_are_openais():
    assert TOOLS["shell"].definition == {
        "type": "function",
        "function": {
            "name": "shell",
            "description": "Runs a shell command and returns what it prints.",
            "parameters": {
                "type": "object",
                "properties": {"command": {"type": "string"}},
                "required": ["command"],
            },
        },
    }


def test_output_comes_back(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("ü\n")
    assert _python("print(12 * 34)") == "408"
    assert _shell("ls; cat a.txt") == "a.txt\nü"
    assert _python("import os; print(os.getcwd())") == str(tmp_path)
    assert _shell("printf '\\377'") == "\ufffd"
    assert _shell("true") == "[no output]"


def test_failures_are_told():
    assert _shell("echo no >&2; exit 3") == "no\n[exit status 3]"
    assert "ZeroDivisionError" in _python("1 / 0")
    assert _python("1 / 0").endswith("[exit status 1]")
    assert _python("\0").startswith("error: ")
    assert _python("x" * 3_000_000).startswith("error: ")


@pytest.mark.parametrize("arguments", ["", "{", "[]", "{}", '{"code": 1}', "[" * 100_000])
def test_arguments_that_do_not_fit_are_told(arguments):
    assert run_call(TOOLS["python"], arguments) == (
        'error: the arguments must be a JSON object with the string "code"'
    )


def test_bare_line_breaks_in_code_are_understood():
    assert run_call(TOOLS["python"], '{"code": "a = 2\nprint(a)"}') == "2"


def test_standard_input_is_empty():
    assert _python("import sys; print(repr(sys.stdin.read()))") == "''"


def test_long_output_is_cut_and_its_writer_killed():
    begun = time.monotonic()
    result = _shell("yes")
    assert time.monotonic() - begun < 5
    text, remark = result.rsplit("\n", 1)
    assert remark == "[cut off after 8192 bytes of output]"
    assert len(text) in (8191, 8192)


@pytest.mark.parametrize(
    "command",
    [
        "echo a; sleep 1; touch it",
        "echo a; (sleep 1; touch it) &",
        "exec >&- 2>&-; sleep 1; touch it",
    ],
)
def test_what_takes_too_long_is_killed(command, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(chat_tools, "TIMEOUT_S", 0.3)
    result = _shell(command)
    assert (
        result
        == ("a\n" if "echo" in command else "")
        + "[stopped after 0.3 s: its process group was killed]"
    )
    time.sleep(1.2)
    assert not (tmp_path / "it").exists(), "something was left running"


def test_a_session_of_its_own_goes_on_and_the_result_claims_no_more(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(chat_tools, "TIMEOUT_S", 0.5)
    # The command keeps the output open, so the call waits for it.
    result = _shell("setsid sh -c 'sleep 1; touch it'")
    assert result == "[stopped after 0.5 s: its process group was killed]"
    deadline = time.monotonic() + 10
    while not (tmp_path / "it").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_an_interrupt_kills_what_runs_and_passes_through(tmp_path):
    pid_file = tmp_path / "pid"
    main = threading.main_thread().ident

    def interrupt():
        deadline = time.monotonic() + 10
        while not (pid_file.exists() and pid_file.read_text().strip()):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        _shell(f"echo $$ > {pid_file}; sleep 60")
    thread.join()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)


def test_an_interrupt_during_the_start_waits_until_there_is_something_to_kill(monkeypatch):
    started = []

    class Interrupted(subprocess.Popen):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            started.append(self.pid)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        _shell("sleep 60")
    with pytest.raises(ProcessLookupError):
        os.kill(started[0], 0)
    assert signal.getsignal(signal.SIGINT) is handler
