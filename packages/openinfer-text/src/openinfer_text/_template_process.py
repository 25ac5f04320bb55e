"""`TemplateProcess`: templates that came with requests, rendered where they do no harm."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from signal import SIGPROF
from threading import Lock
from typing import Any

from openinfer_text.errors import InvalidChatInput, TemplateError

MAX_TEMPLATE_CHARS = 1 << 16
"""Of a template that comes with a request."""


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
            return reply["text"]
        if "field" in reply:
            raise InvalidChatInput(reply["field"], reply["reason"])
        raise TemplateError(reply["error"])

    def close(self) -> None:
        """Ends the process, and whatever it is rendering; idempotent."""
        self._is_closed = True
        process = self._process
        if process is not None:
            process.kill()
        with self._lock:
            self._reap()

    def _ask(self, line: bytes) -> dict[str, str]:
        if self._is_closed:
            raise TemplateError("no more templates are rendered")
        if self._process is None:
            self._process = _start()
        reader, writer = self._process.stdout, self._process.stdin
        assert reader is not None
        assert writer is not None
        try:
            writer.write(line)
            writer.flush()
            answer = reader.readline()
        except BrokenPipeError:
            answer = b""
        if answer.endswith(b"\n"):
            reply: dict[str, str] = json.loads(answer)
            return reply
        is_late = self._reap() == -SIGPROF
        return {"error": "it takes too long" if is_late else "it needs too much memory"}

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
        [sys.executable, "-P", "-m", "openinfer_text._template_worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
