"""`ChatTemplate`: a checkpoint's Jinja template in a sandbox, rendered as transformers does.

Templates come with checkpoints and are foreign programs: they run in Jinja's immutable sandbox,
which forbids underscore attributes, changes to what it is given, and ranges of more than 100,000
items. What goes wrong inside is one `TemplateError`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, NoReturn

import jinja2
import jinja2.ext
import jinja2.meta
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from openinfer_text._messages import ContentFormat, normalizer_for
from openinfer_text.errors import InvalidChatInput, TemplateError

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
# Two private-use characters nobody types; the space tells whether the template trims.
_END_MARK = "\U000f0c0d\U000f0c0e"
_END_MARK_SPACED = _END_MARK + " "


class ChatTemplate:
    """Messages to prompt text, byte for byte what transformers' `apply_chat_template` renders.

    Messages are first shaped for the template: content parts become text (joined by newlines) or,
    for templates that loop over content, stay parts; argument strings of tool calls become objects,
    others are refused; null content becomes ""; `developer` becomes `system` unless the template
    knows it; other null fields are dropped; reasoning is readable under each of its names.

    Rendering holds the GIL. Any thread may render; nothing is shared between renders.

    Attributes:
        content_format: what the default template takes as `content`.
        tools_source: Jinja source of the template for requests with tools.
        takes_tools: whether that template reads them.
    """

    def __init__(
        self,
        sources: str | Mapping[str, str],
        *,
        special_tokens: Mapping[str, str] | None = None,
        content_format: ContentFormat | Literal["auto"] = "auto",
    ) -> None:
        """Compiles templates.

        Args:
            sources: one template, or several by name; "default" must be among them, "tool_use" is
                taken when a request brings tools.
            special_tokens: `bos_token` and so on, visible in templates under these names.
            content_format: shape of content; "auto" looks at how the template uses it.

        Raises:
            TemplateError: if a template is not valid Jinja or none is named "default".
        """
        named = {"default": sources} if isinstance(sources, str) else dict(sources)
        if "default" not in named:
            names = ", ".join(sorted(named))
            raise TemplateError(f"no chat template is named 'default'; there are: {names}")
        environment = _environment()
        self._special_tokens = dict(special_tokens or {})
        self._templates = {}
        for name, source in named.items():
            try:
                parsed = environment.parse(source)
                normalizer = normalizer_for(parsed, content_format=content_format)
                self._templates[name] = (source, environment.from_string(parsed), normalizer)
            except jinja2.TemplateSyntaxError as error:
                reason = f"chat template {name!r}, line {error.lineno}: {error.message}"
                raise TemplateError(reason) from error
        self.content_format: ContentFormat = self._templates["default"][2].content_format
        self.tools_source = named.get("tool_use", named["default"])
        parsed = environment.parse(self.tools_source)
        self.takes_tools = "tools" in jinja2.meta.find_undeclared_variables(parsed)

    def normalize(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The messages as the default template is given them.

        Raises:
            InvalidChatInput: naming the field that cannot be used.
        """
        return self._templates["default"][2].normalize(messages)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt text of a chat.

        Args:
            messages: OpenAI messages as parsed JSON (dicts, lists, strings, numbers).
            tools: tool definitions as the request gives them.
            documents: retrieval documents, for templates that know them.
            add_generation_prompt: end with the header of the next assistant message.
            continue_final_message: end inside the last message's content, so that it is continued.
            chat_template_kwargs: further variables; they win over special tokens.

        Raises:
            InvalidChatInput: if the messages or the variables' names cannot be used.
            TemplateError: if the template fails or calls `raise_exception`.
        """
        variables = dict(chat_template_kwargs or {})
        for name in sorted(_RESERVED & variables.keys()):
            raise InvalidChatInput(f"chat_template_kwargs.{name}", "is a parameter of its own")
        if continue_final_message and add_generation_prompt:
            reason = "cannot be combined with add_generation_prompt"
            raise InvalidChatInput("continue_final_message", reason)
        named = "tool_use" if tools is not None and "tool_use" in self._templates else "default"
        source, template, normalizer = self._templates[named]
        chat = normalizer.normalize(messages)
        final_text = _mark_end(chat[-1], source) if continue_final_message else ""
        rendered = _run(
            template,
            {
                **self._special_tokens,
                **variables,
                "messages": chat,
                "tools": tools,
                "documents": documents,
                "add_generation_prompt": add_generation_prompt,
            },
        )
        return _cut_at_mark(rendered, final_text) if continue_final_message else rendered


def _run(template: jinja2.Template, variables: dict[str, Any]) -> str:
    try:
        return template.render(variables)
    except jinja2.TemplateError as error:
        raise TemplateError(error.message or type(error).__name__) from error
    except Exception as error:  # a template can raise whatever its filters and operators raise
        raise TemplateError(f"{type(error).__name__}: {error}") from error


def _mark_end(message: dict[str, Any], source: str) -> str:
    """Marks the end of the message's text; returns the text as it was."""
    content = message["content"]
    if not content or "content" not in source:
        raise InvalidChatInput("continue_final_message", "the last message has no text to continue")
    if isinstance(content, str):
        message["content"] = content + _END_MARK_SPACED
        return content
    text: str = content[-1]["text"]
    content[-1]["text"] = text + _END_MARK_SPACED
    return text


def _cut_at_mark(rendered: str, final_text: str) -> str:
    at = rendered.rfind(_END_MARK)
    if at < 0 or final_text.strip() not in rendered:
        raise TemplateError("the chat template does not show the whole last message to continue")
    text = rendered[:at]
    return text if rendered.startswith(_END_MARK_SPACED, at) else text.rstrip()


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationBlock, jinja2.ext.loopcontrols],
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    environment.globals["namespace"] = _Namespace
    return environment


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}`: marks what the assistant says, for training; here its body alone."""

    tags = {"generation"}  # noqa: RUF012 - Jinja declares it this way

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        # A block of its own scope, as transformers renders it: assignments inside stay inside.
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Any) -> str:
        text: str = caller()
        return text


class _Namespace(jinja2.utils.Namespace):
    """Jinja's namespace, not assignable by underscore names, which are Python's own."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"a namespace cannot hold the name {name!r}")
        super().__setitem__(name, value)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes for HTML, which no model has seen in training.
    text = json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    # Half a surrogate pair, which a model can write into a call, has no UTF-8: it stays escaped.
    return _LONE_SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)
