"""`TemplateProcess`: templates that came with requests, rendered where they do no harm."""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from signal import SIGABRT, SIGPROF
from threading import Lock
from typing import Any

from openinfer_text.errors import InvalidChatInput, TemplateError, TemplateProcessLost

_log = logging.getLogger(__name__)

MAX_TEMPLATE_CHARS = 1 << 16
"""Of a template that comes with a request."""
_COMMAND = (sys.executable, "-P", "-m", "openinfer_text.templates._template_worker")
_ENVIRONMENT = (
    "LANG",
    "LD_LIBRARY_PATH",
    "PATH",
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONHOME",
    "PYTHONPATH",
)
"""What Python starts with; the keys of the server are none of a template's business."""
_REASONS = {
    -SIGPROF: "it takes too long",
    -SIGABRT: "it needs too much memory",  # the end of native code that gets none
}
"""Why a template may end the process, by the status that this leaves."""


class TemplateProcess:
    """Renders foreign templates in a process of its own, one after another.

    The process starts with the first template, has bounds on time and memory, and another one
    starts where it was lost. Any thread; callers wait for each other.
    """

    def __init__(self, special_tokens: Mapping[str, str]) -> None:
        """Starts nothing yet.

        Args:
            special_tokens: as `ChatTemplate`.
        """
        self._special_tokens = dict(special_tokens)
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False

    def render(self, source: str, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        """The text that a template makes of messages.

        Args:
            source: Jinja.
            messages: of parsed JSON.
            options: as `ChatTemplate.render`, likewise.

        Raises:
            InvalidChatInput: if the messages or the variables' names cannot be used.
            TemplateError: if the template cannot be compiled, fails, or takes too much; with the
                line where there is one.
            TemplateProcessLost: if the process ended for a reason that is not the template's.
        """
        order = {
            "source": source,
            "special_tokens": self._special_tokens,
            "messages": messages,
            "options": options,
        }
        line = json.dumps(order, default=dict).encode() + b"\n"
        with self._lock:
            reply = self._ask(line)
        if "text" in reply:
            return str(reply["text"])
        if "field" in reply:
            raise InvalidChatInput(reply["field"], reply["reason"])
        raise TemplateError(reply["error"])

    def close(self) -> None:
        """Ends the process, and whatever it is rendering; idempotent."""
        self._is_closed = True
        self._kill()
        with self._lock:
            self._kill()  # what was started meanwhile
            self._reap()

    def _kill(self) -> None:
        process = self._process
        if process is not None:
            process.kill()

    def _ask(self, line: bytes) -> dict[str, Any]:
        is_new = self._process is None
        answer = self._exchange(line)
        if answer.endswith(b"\n"):
            reply: dict[str, Any] = json.loads(answer)
            if reply["is_last"]:
                self._reap()
            return reply
        if self._is_closed:
            raise TemplateError("no more templates are rendered")
        status = self._reap()
        if status in _REASONS:
            return {"error": _REASONS[status]}
        _log.warning("the process that renders templates of requests ended with %s", status)
        if is_new:
            raise TemplateProcessLost
        return self._ask(line)  # it may have been lost before, as by the system's lack of memory

    def _exchange(self, line: bytes) -> bytes:
        """A line for a line; what comes back has no end if the process had one."""
        if self._process is None and not self._is_closed:
            self._process = _start()
        # Looked at once there is a process: `close` looks for one once it has said so.
        if self._is_closed:
            return b""
        assert self._process is not None
        reader, writer = self._process.stdout, self._process.stdin
        assert reader is not None
        assert writer is not None
        try:
            writer.write(line)
            writer.flush()
            return reader.readline()
        except BrokenPipeError:
            return b""

    def _reap(self) -> int | None:
        """Forgets a process that ended or was told to; returns its status."""
        process, self._process = self._process, None
        if process is None:
            return None
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # what it has not taken
            process.stdin.close()
        with process:  # closes the other pipe, and waits
            return process.wait()


def _start() -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        _COMMAND,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
    )
