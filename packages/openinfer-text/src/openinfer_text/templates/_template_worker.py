"""Renders templates that came with requests, in a process that may be lost.

A template is a program of a stranger's. Jinja's sandbox keeps it from the machine, not from taking
all the time and memory there is; the operating system's limits do, and end this process.

One line of JSON in, one line out, until the input ends: see `_template_process`.
"""

import json
import os
import resource
import signal
import sys
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from openinfer_text.errors import InvalidChatInput, TemplateError
from openinfer_text.templates._chat_template import ChatTemplate

_MAX_CPU_S = 1.0
"""For one template, compiled and rendered."""
_LIMITS = {
    resource.RLIMIT_AS: 1 << 30,
    resource.RLIMIT_CORE: 0,
    resource.RLIMIT_FSIZE: 0,
    resource.RLIMIT_NPROC: 0,
}
_MAX_TEXT_CHARS = 4 << 20
_MAX_TEMPLATES = 16
_MAX_GROWTH = 128 << 20
"""Bytes of memory that may stay when a template is done; with more the process ends."""
_TOO_MUCH_MEMORY = {"error": "it needs too much memory", "is_last": True}


class _Templates:
    """Compiled templates by their source, least recently used out first."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, ChatTemplate] = OrderedDict()

    def get(self, source: str, special_tokens: dict[str, str]) -> ChatTemplate:
        template = self._known.get(source)
        if template is None:
            template = self._known[source] = ChatTemplate(source, special_tokens=special_tokens)
            if len(self._known) > _MAX_TEMPLATES:
                self._known.popitem(last=False)
        self._known.move_to_end(source)
        return template


def _render(templates: _Templates, order: dict[str, Any]) -> str:
    template = templates.get(order["source"], order["special_tokens"])
    options = order["options"]
    if options.get("tools") and not template.takes_tools:
        raise InvalidChatInput("tools", "this chat template has no place for them")
    text = template.render(order["messages"], **options)
    if len(text) > _MAX_TEXT_CHARS:
        raise TemplateError(f"it makes more than {_MAX_TEXT_CHARS} characters")
    return text


def _answer(templates: _Templates, order: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"text": _render(templates, order)}
    except InvalidChatInput as error:
        return {"field": error.field, "reason": error.reason}
    except TemplateError as error:
        if isinstance(error.__cause__, MemoryError):
            return dict(_TOO_MUCH_MEMORY)
        return {"error": _explain(error)}
    except MemoryError:
        return dict(_TOO_MUCH_MEMORY)
    except RecursionError:
        return {"error": "it is nested too deeply"}
    except Exception as error:  # whatever the compiler makes of a stranger's program
        return {"error": f"{type(error).__name__}: {error}"}


def _explain(error: TemplateError) -> str:
    """The error with its line in the template."""
    cause = error.__cause__
    line, words = getattr(cause, "lineno", None), error.message
    if line is None:
        line = _line_of(None if cause is None else cause.__traceback__)
    else:
        words = getattr(cause, "message", None) or words
    return words if line is None else f"line {line}: {words}"


def _line_of(trace: TracebackType | None) -> int | None:
    """The innermost line of the template; Jinja writes its lines into tracebacks."""
    line = None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def _resident_bytes() -> int:
    """Memory held now; 0 where the system does not say so.

    Not `ru_maxrss`: it begins with the peak of the process that started this one.
    """
    with suppress(OSError):
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    return 0


def _reply(templates: _Templates, line: bytes, max_bytes: int) -> dict[str, Any]:
    """The answer to a line of input, and whether it is the last."""
    answer = _answer(templates, json.loads(line))
    return {"is_last": _resident_bytes() > max_bytes} | answer


def main() -> None:
    """Answers until the input ends, or memory does not come back."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is its parent's to act on
    for limit, value in _LIMITS.items():
        with suppress(ValueError, OSError):  # where the system has no such limit
            resource.setrlimit(limit, (value, value))
    templates, max_bytes = _Templates(), _resident_bytes() + _MAX_GROWTH
    for line in sys.stdin.buffer:
        # Its signal ends the process, whatever is being done.
        signal.setitimer(signal.ITIMER_PROF, _MAX_CPU_S)
        try:
            reply = _reply(templates, line, max_bytes)
            text = json.dumps(reply)
        except MemoryError:
            reply, text = _TOO_MUCH_MEMORY, json.dumps(_TOO_MUCH_MEMORY)
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(text.encode() + b"\n")
        sys.stdout.buffer.flush()
        if reply["is_last"]:
            break


if __name__ == "__main__":
    main()
