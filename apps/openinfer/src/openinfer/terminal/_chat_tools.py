"""The tools of `openinfer chat`: Python code and shell commands, run on this machine.

There is no sandbox. What runs may do all that the user may do; whoever calls `run_call` has asked
the user, or was told not to ask.
"""

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from openinfer.errors import UsageError

TIMEOUT_S = 10.0
MAX_OUTPUT_BYTES = 8192


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
        """The string in a call's arguments, None if they are not what the tool takes."""
        try:
            # Not strict: models forget to escape the line breaks of their code.
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
    """Tools by their names with commas between; `none` and "" for none.

    Raises:
        UsageError: naming those that there are.
    """
    names = [name.strip() for name in text.split(",") if name.strip() not in ("", "none")]
    for name in names:
        if name not in TOOLS:
            raise UsageError(f"there is no tool {name!r}; there are: {', '.join(TOOLS)}")
    return tuple(TOOLS[name] for name in dict.fromkeys(names))


def run_call(tool: Tool, arguments: str) -> str:
    """Runs one call in the current folder; its output, errors included, is what the model reads.

    An interrupt kills what runs and passes through. Killed is the command's process group: what it
    started in a session of its own (`setsid`, a daemon) goes on.
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
    """Output of a command in a process group of its own, and what else there is to say of it."""
    deadline = time.monotonic() + TIMEOUT_S
    with (
        _interrupt_held() as release,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # Ctrl-C on the terminal is ours to act on.
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
            # Also what the command has left running, save what began a session of its own.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if remark is not None:
        return output, [remark]
    return output, [f"[exit status {process.returncode}]"] if process.returncode else []


@contextmanager
def _interrupt_held() -> Iterator[Callable[[], None]]:
    """Lets an interrupt wait for a call of what it yields, at most until the end.

    One that came while a process is being started would leave it running and unknown.
    """
    if threading.current_thread() is not threading.main_thread():  # which alone is interrupted
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
    """What a process writes until it closes its output, and why no more was waited for."""
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
