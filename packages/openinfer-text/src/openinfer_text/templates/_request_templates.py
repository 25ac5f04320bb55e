"""Chat templates that come with requests, compiled once and cached."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from threading import Lock
from types import TracebackType
from typing import Any

from openinfer_text.errors import InvalidChatInput, TemplateError
from openinfer_text.templates._chat_template import ChatTemplate

MAX_TEMPLATE_CHARS = 1 << 16
"""Maximum number of characters of a template in a request."""
_MAX_TEMPLATES = 16


class RequestTemplates:
    """Cache of compiled templates by source, least recently used evicted first; any thread."""

    def __init__(self, special_tokens: Mapping[str, str]) -> None:
        """Creates an empty cache.

        Args:
            special_tokens: as `ChatTemplate`.
        """
        self._special_tokens = dict(special_tokens)
        self._templates: OrderedDict[str, ChatTemplate] = OrderedDict()
        self._lock = Lock()

    def render(self, source: str, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        """Returns the text that a template makes of messages.

        Args:
            source: Jinja.
            messages: parsed JSON.
            options: as `ChatTemplate.render`.

        Raises:
            InvalidChatInput: the messages, the tools or the variables' names cannot be used.
            TemplateError: the template cannot be compiled, fails, or goes beyond a limit; names the
                template's line if it is known.
        """
        try:
            template = self._template(source)
            if options.get("tools") and not template.takes_tools:
                raise InvalidChatInput("tools", "this chat template has no place for them")
            return template.render(messages, **options)
        except TemplateError as error:
            raise TemplateError(_with_line(error)) from error

    def _template(self, source: str) -> ChatTemplate:
        with self._lock:
            template = self._templates.get(source)
            if template is not None:
                self._templates.move_to_end(source)
                return template
        template = ChatTemplate(source, special_tokens=self._special_tokens)
        with self._lock:
            self._templates[source] = template
            if len(self._templates) > _MAX_TEMPLATES:
                self._templates.popitem(last=False)
        return template


def _with_line(error: TemplateError) -> str:
    """Returns the error's message after its line in the template."""
    cause = error.__cause__
    line, message = getattr(cause, "lineno", None), error.message
    if line is None:
        line = _line_of(None if cause is None else cause.__traceback__)
    else:
        message = getattr(cause, "message", None) or message
    return message if line is None else f"line {line}: {message}"


def _line_of(trace: TracebackType | None) -> int | None:
    """Returns the innermost line of the template; Jinja writes its lines into tracebacks."""
    line = None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return line
