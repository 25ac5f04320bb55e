"""The tools of `openinfer chat`: Python code and shell commands, run on this machine.

There is no sandbox: a command may do everything that the user may do. The caller of `run_call` asks
the user first, unless `--run-tools` says not to.
"""

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from openinfer.errors import UsageError

TIMEOUT_S = 10.0
MAX_OUTPUT_BYTES = 8192
ANSWER_TOKENS = 128
"""Tokens of the context that are kept free for the response after results of calls. If half of the
free tokens are fewer, that half is kept.
"""
_CUT_REMARK = "[cut off here: the context has no room for more]"
_CUT_STEP = 16
"""A result is cut to a multiple of this number of characters."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that a model may call, with one string as its argument."""

    name: str
    description: str
    parameter: str
    command: Callable[[str], list[str]]

    @property
    def definition(self) -> dict[str, Any]:
        """OpenAI's tool definition."""
        schema = {
            "type": "object",
            "properties": {self.parameter: {"type": "string"}},
            "required": [self.parameter],
        }
        function = {"name": self.name, "description": self.description, "parameters": schema}
        return {"type": "function", "function": function}

    def argument(self, arguments: str) -> str | None:
        """Returns the string in a call's arguments, or None if the tool does not take them."""
        try:
            # Not strict, because models forget to escape the line breaks of their code.
            value = json.loads(arguments, strict=False)
        except (ValueError, RecursionError):
            return None
        text = value.get(self.parameter) if isinstance(value, dict) else None
        return text if isinstance(text, str) else None


TOOLS = {
    tool.name: tool
    for tool in (
        Tool(
            "python",
            "Runs Python code and returns what it prints.",
            "code",
            lambda code: [sys.executable, "-I", "-c", code],
        ),
        Tool(
            "shell",
            "Runs a shell command and returns what it prints.",
            "command",
            lambda command: ["sh", "-c", command],
        ),
    )
}


def parse_tools(text: str) -> tuple[Tool, ...]:
    """Returns the tools that a comma-separated list names; `none` and "" name none.

    Raises:
        UsageError: a name is unknown; the message lists the known ones.
    """
    names = [name.strip() for name in text.split(",") if name.strip() not in ("", "none")]
    for name in names:
        if name not in TOOLS:
            raise UsageError(f"there is no tool {name!r}; available: {', '.join(TOOLS)}")
    return tuple(TOOLS[name] for name in dict.fromkeys(names))


def run_call(tool: Tool, arguments: str) -> str:
    """Runs one call in the current folder; returns its output and errors for the model.

    An interrupt kills the command's process group and is raised again. Processes that the command
    started in a session of their own (`setsid`, a daemon) keep running.
    """
    text = tool.argument(arguments)
    if text is None:
        return f'error: the arguments must be a JSON object with the string "{tool.parameter}"'
    try:
        output, remarks = _run(tool.command(text))
    except (OSError, ValueError) as error:
        return f"error: {error}"
    shown = output.decode("utf-8", "replace").rstrip("\n")
    return "\n".join(part for part in (shown, *remarks) if part) or "[no output]"


def _run(command: Sequence[str]) -> tuple[bytes, list[str]]:
    """Runs a command in its own process group; returns its output and remarks about its end."""
    deadline = time.monotonic() + TIMEOUT_S
    with (
        _interrupt_held() as release,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # Ctrl-C on the terminal must reach this process alone.
            start_new_session=True,
        ) as process,
    ):
        try:
            release()
            output, remark = _collect(process, deadline)
            if remark is None:
                try:
                    process.wait(max(0.0, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    remark = _too_long()
        finally:
            # This also kills background processes of the command, except those in other sessions.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if remark is not None:
        return output, [remark]
    return output, [f"[exit status {process.returncode}]"] if process.returncode else []


@contextmanager
def _interrupt_held() -> Iterator[Callable[[], None]]:
    """Holds interrupts back until the yielded function is called, or until the block ends.

    An interrupt while a process is being started would leave the process running.
    """
    if (
        threading.current_thread() is not threading.main_thread()
    ):  # only the main thread gets interrupts
        yield lambda: None
        return
    held: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: held.append(number))

    def release() -> None:
        signal.signal(signal.SIGINT, before)
        if held:
            signal.raise_signal(held.pop())

    try:
        yield release
    finally:
        release()


def _collect(process: "subprocess.Popen[bytes]", deadline: float) -> tuple[bytes, str | None]:
    """Returns the output of a process, and a remark if it was not read to its end."""
    assert process.stdout is not None
    output = b""
    while len(output) <= MAX_OUTPUT_BYTES:
        left = max(0.0, deadline - time.monotonic())
        if not select.select([process.stdout], [], [], left)[0]:
            return output, _too_long()
        part = os.read(process.stdout.fileno(), 65536)
        if not part:
            return output, None
        output += part
    return output[:MAX_OUTPUT_BYTES], f"[cut off after {MAX_OUTPUT_BYTES} bytes of output]"


def _too_long() -> str:
    return f"[stopped after {TIMEOUT_S:g} s: its process group was killed]"


def fit_result(
    result: str, num_left: Callable[[str], int | None], *, num_results: int = 1
) -> tuple[str, int]:
    """Returns a call's result, cut so that the context has room for a response after it.

    Args:
        result: the call's result.
        num_left: returns the free tokens of the context after a conversation that ends with the
            given result; negative if the conversation is too long, None if unknown.
        num_results: number of results that share the free tokens: this one and those of open calls.

    Returns:
        The text for the model, and the number of characters of the result in it. If the number of
        free tokens is unknown, the result is not cut.
    """
    left, most = num_left(result), num_left(_CUT_REMARK)
    if left is None or most is None:
        return result, len(result)
    room = max(0, most)
    wanted = room - (room - min(ANSWER_TOKENS, room // 2)) // num_results
    if left >= wanted:
        return result, len(result)

    def is_too_long(num_chars: int) -> bool:
        left = num_left(_cut(result, num_chars))
        return left is None or left < wanted

    lengths = range(0, len(result), _CUT_STEP)
    num_chars = lengths[max(0, bisect_left(lengths, True, key=is_too_long) - 1)]
    return _cut(result, num_chars), num_chars


def _cut(result: str, num_chars: int) -> str:
    return f"{result[:num_chars]}\n{_CUT_REMARK}" if num_chars else _CUT_REMARK
