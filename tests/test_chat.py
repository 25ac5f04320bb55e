"""`openinfer chat` on a real pty, with a real server that gives the responses of the test."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from openinfer_testing import install_scripted_line, write_scripted_checkpoint

_CODE = '{"code": "print(6 * 7)"}'
_CALL = f'<tool_call>\n{{"name": "python", "arguments": {_CODE}}}\n</tool_call>'
_LONG = "Once upon a time " + " ".join(f"there was number {n}," for n in range(400))
_SLEEP = (
    '<tool_call>\n{"name": "shell", "arguments": {"command": "echo begun; sleep 60"}}\n</tool_call>'
)
# The pty must be the controlling terminal, so that its Ctrl-C becomes SIGINT.
_LAUNCH = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)


class Terminal:
    """A process on its own pty. Its output is kept without escape sequences."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", _LAUNCH, *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm", "HF_HUB_OFFLINE": "1", **environment},
        )
        os.close(theirs)
        self.raw = ""
        self._num_seen = 0

    @property
    def text(self) -> str:
        """Returns the whole output as plain lines."""
        plain = re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", self.raw)
        return plain.replace("\r", "")

    def expect(self, words: str, timeout_s: float = 30) -> None:
        """Waits until `words` appear after the previously expected words."""
        deadline = time.monotonic() + timeout_s
        while (at := self.text.find(words, self._num_seen)) < 0:
            left = deadline - time.monotonic()
            assert left > 0, f"no {words!r} in {self.text[self._num_seen :]!r}"
            if select.select([self._ours], [], [], left)[0]:
                try:
                    self.raw += os.read(self._ours, 65536).decode(errors="replace")
                except OSError as error:  # the other side is closed
                    raise AssertionError(f"it ended: {self.text!r}") from error
        self._num_seen = at + len(words)

    def send(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def line(self, text: str) -> None:
        """Types a line at the prompt."""
        self.expect("> ")
        self.send(text + "\n")

    def interrupt(self) -> None:
        """Presses Ctrl-C within a line. It would be lost before the wait for keys begins."""
        self.send("half a line")
        self.expect("half a line")
        time.sleep(0.2)
        self.send("\x03")

    def end(self) -> int:
        """Presses Ctrl-D at the prompt and returns the exit status."""
        self.expect("> ")
        self.send("\x04")
        return self.process.wait(30)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._ours)


@pytest.fixture
def terminal() -> Iterator[Any]:
    opened: list[Terminal] = []

    def run(*arguments: str, **environment: str) -> Terminal:
        opened.append(Terminal("-m", "openinfer", *arguments, **environment))
        return opened[-1]

    yield run
    for one in opened:
        one.close()


@pytest.fixture
def scripted(tmp_path, start_server) -> Any:
    """Starts a server that gives these responses in turn."""

    def start(*answers: str, step_s: float = 0.0) -> Any:
        site = install_scripted_line(tmp_path / "site")
        folder = write_scripted_checkpoint(tmp_path / "model", answers)
        path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
        arguments = ("--model", str(folder), "--step-s", str(step_s))
        return start_server(*arguments, env={"PYTHONPATH": path})

    return start


def test_ctrl_c_stops_the_answer_and_the_talk_goes_on(scripted, terminal):
    server = scripted(_LONG, "I am here.", step_s=0.02)
    shown = terminal("chat", "--url", server.url)
    shown.expect("by OpenInfer")
    shown.line("Tell me a story.")
    shown.expect("there was number 1,")
    shown.send("\x03")
    shown.expect("[stopped]")
    server.assert_idle()
    assert server.load()["num_output_tokens"] < 1000, "the server stopped, too"
    shown.line("Are you there?")
    shown.expect("I am here.")
    assert shown.end() == 0


def test_ctrl_c_at_the_prompt_and_in_the_question_does_not_end_it(scripted, terminal):
    server = scripted(_CALL, "Then not.")
    shown = terminal("chat", "--url", server.url, "--tools", "python")
    shown.expect("> ")
    shown.interrupt()
    shown.line("6 * 7?")
    shown.expect("run it? [y/N/always] ")
    shown.interrupt()
    shown.expect("not run: the user did not allow it")
    shown.line("Well?")
    shown.expect("Then not.")
    assert shown.end() == 0


def test_a_call_is_shown_asked_for_run_and_answered(scripted, terminal, tmp_path):
    server = scripted(f"<think>\nhm\n</think>\n\nLet me see.\n{_CALL}", "It is 42.")
    shown = terminal("chat", "--url", server.url, "--tools", "python,shell")
    shown.line("What is 6 * 7?")
    for words in ("hm\n", "Let me see.\n", "[python]\n  print(6 * 7)\n", "run it? [y/N/always] "):
        shown.expect(words)
    shown.send("y\n")
    shown.expect("  42\n")
    shown.expect("It is 42.\n")
    assert "\x1b[2mh" in shown.raw, "reasoning is dim"
    assert shown.end() == 0


def test_no_colours_where_they_are_not_wanted(scripted, terminal):
    server = scripted("<think>\nhm\n</think>\n\nYes.")
    shown = terminal("chat", "--url", server.url, NO_COLOR="1")
    shown.line("Really?")
    shown.expect("hm\nYes.")
    assert "\x1b[2m" not in shown.raw
    assert shown.end() == 0


def test_ctrl_c_while_a_call_runs_ends_the_call(scripted, terminal):
    server = scripted(_SLEEP, "All right.")
    shown = terminal("chat", "--url", server.url, "--tools", "shell", "--run-tools")
    shown.line("Wait!")
    shown.expect("[shell]\n  echo begun; sleep 60\n")
    time.sleep(0.5)
    shown.send("\x03")
    shown.expect("[stopped]")
    shown.line("Go on.")
    shown.expect("All right.")
    assert shown.end() == 0


def test_lines_can_be_edited_and_come_back(scripted, terminal):
    server = scripted("First.", "Second.")
    shown = terminal("chat", "--url", server.url)
    shown.line("/tools pythoX\x7fn")
    shown.expect("tools: python")
    shown.expect("> ")
    shown.send("\x1b[A\n")  # up: the line before
    shown.expect("/tools python")
    shown.expect("tools: python")
    assert shown.end() == 0


def test_in_process_the_same_keys_work(tmp_path, terminal):
    site = install_scripted_line(tmp_path / "site")
    folder = write_scripted_checkpoint(tmp_path / "model", [_LONG, _CALL, "It is 42."])
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    arguments = ("chat", str(folder), "--step-s", "0.02", "--tools", "python")
    shown = terminal(*arguments, PYTHONPATH=path)
    shown.expect("loading the model")
    shown.line("Tell me a story.")
    shown.expect("there was number 1,")
    shown.send("\x03")
    shown.expect("[stopped]")
    shown.line("6 * 7?")
    shown.expect("run it? [y/N/always] ")
    shown.send("always\n")
    shown.expect("It is 42.")
    assert shown.end() == 0


def test_piped_talks_print_answers_and_nothing_else(scripted, run_openinfer):
    server = scripted(f"<think>\nhm\n</think>\n\n{_CALL}", "It is 42.")
    arguments = ("chat", "--url", server.url, "--tools", "python")
    status, stdout, stderr = run_openinfer(*arguments, "--run-tools", stdin="6 * 7?\n")
    assert (status, stdout) == (0, "It is 42.\n"), stderr
    assert "print(6 * 7)" in stderr
    assert "\x1b" not in stderr
    status, stdout, stderr = run_openinfer(*arguments, stdin="6 * 7?\n")
    assert (status, stdout) == (1, "")
    assert "openinfer: the model calls python; not run: there is no terminal" in stderr
    assert "--run-tools runs calls unasked" in stderr
    assert "42" not in stderr


def test_a_result_too_long_for_the_context_is_cut_and_the_talk_goes_on(scripted, run_openinfer):
    call = _CALL.replace("print(6 * 7)", "print('word ' * 4000)")
    server = scripted(call, "It is long.")
    status, stdout, stderr = run_openinfer(
        *("chat", "--url", server.url, "--tools", "python", "--run-tools"), stdin="Go.\n"
    )
    assert (status, stdout) == (0, "It is long.\n"), stderr
    assert "characters: its context has no room for more]" in stderr


def test_a_pasted_text_and_one_between_marks_are_one_turn_each(scripted, terminal):
    server = scripted("First.", "Second.", "Third.")
    shown = terminal("chat", "--url", server.url)
    shown.expect("> ")
    shown.send("\x1b[200~one\n/two\x1b[201~")
    shown.expect("/two")
    shown.send("\n")
    shown.expect("First.")
    shown.line('"""')
    for line in ("three", 'four"""'):
        shown.expect(". ")
        shown.send(line + "\n")
    shown.expect("Second.")
    assert shown.end() == 0


def test_a_terminated_talk_leaves_nothing_running(scripted, terminal):
    server = scripted(_LONG, step_s=0.02)
    shown = terminal("chat", "--url", server.url)
    shown.line("Tell me a story.")
    shown.expect("there was number 1,")
    shown.process.send_signal(signal.SIGTERM)
    shown.process.wait(30)
    server.assert_idle()
