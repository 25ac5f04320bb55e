"""`ChatTemplate`: a checkpoint's Jinja template, rendered as transformers does."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

import jinja2
import jinja2.meta
from jinja2 import nodes

from openinfer_text.errors import InvalidChatInput, TemplateError
from openinfer_text.templates._messages import (
    ContentFormat,
    normalizer_for,
    without_broken_arguments,
)
from openinfer_text.templates._sandbox import TemplateSandbox, compile_template, render

_RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt", "chat_template"})
# Two private-use characters, which occur in no text. The space after them shows whether the
# template trims content.
_END_MARK = "\U000f0c0d\U000f0c0e"
_END_MARK_SPACED = _END_MARK + " "


class ChatTemplate:
    """Renderer of messages to prompt text, byte for byte as transformers' `apply_chat_template`.

    Messages are normalised for the template first. Content parts become text, joined by newlines;
    for templates that loop over content they stay parts. Arguments of tool calls become objects if
    they are JSON objects, and stay strings otherwise. An assistant's null content becomes "".
    `developer` becomes `system` unless the template knows it. Other null fields are dropped.
    Reasoning is readable under each of its names.

    Rendering holds the GIL. Any thread may render. A template that takes more than 2 seconds of CPU
    time, or makes more than 64 Mi characters, is ended.

    Attributes:
        content_format: form of `content` that the default template reads.
        tools_source: Jinja source of the template for requests with tools.
        takes_tools: whether that template reads tools.
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
            sources: one template, or several by name. "default" must be among them; "tool_use" is
                used for requests with tools.
            special_tokens: `bos_token` and so on, readable in templates under these names.
            content_format: form of content; "auto" detects how the template uses it.

        Raises:
            TemplateError: a template is not valid Jinja, or none is named "default".
        """
        named = {"default": sources} if isinstance(sources, str) else dict(sources)
        if "default" not in named:
            names = ", ".join(sorted(named))
            raise TemplateError(f"no chat template is named 'default'; there are: {names}")
        environment = TemplateSandbox()
        self._special_tokens = dict(special_tokens or {})
        self._templates = {}
        for name, source in named.items():
            try:
                parsed = _parse(environment, source)
                normalizer = normalizer_for(parsed, content_format=content_format)
                template = compile_template(environment, source)
                self._templates[name] = (source, template, normalizer)
            except jinja2.TemplateSyntaxError as error:
                reason = f"chat template {name!r}, line {error.lineno}: {error.message}"
                raise TemplateError(reason) from error
        self.content_format: ContentFormat = self._templates["default"][2].content_format
        self.tools_source = named.get("tool_use", named["default"])
        parsed = environment.parse(self.tools_source)
        self.takes_tools = "tools" in jinja2.meta.find_undeclared_variables(parsed)

    @cached_property
    def takes_late_system(self) -> bool:
        """Whether the default template shows a system message that is not the first message."""
        chat = [{"role": role, "content": f"{role}'s"} for role in ("user", "system", "user")]
        try:
            return "system's" in self.render(chat, add_generation_prompt=True)
        except TemplateError:
            return False

    def normalize(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Returns the messages in the form that the default template reads.

        Raises:
            InvalidChatInput: a field cannot be used; names it.
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
        """Returns the prompt text of a chat.

        Args:
            messages: OpenAI messages as parsed JSON (dicts, lists, strings, numbers).
            tools: tool definitions of the request.
            documents: retrieval documents, for templates that read them.
            add_generation_prompt: end with the header of the next assistant message.
            continue_final_message: end inside the last message's content; the model continues it.
            chat_template_kwargs: further variables; they take precedence over special tokens.

        Raises:
            InvalidChatInput: the messages or the names of variables cannot be used.
            TemplateError: the template fails, or calls `raise_exception`.
        """
        variables = dict(chat_template_kwargs or {})
        for name in sorted(_RESERVED & variables.keys()):
            raise InvalidChatInput(
                f"chat_template_kwargs.{name}", "must be given as a parameter of its own"
            )
        if continue_final_message and add_generation_prompt:
            reason = "needs add_generation_prompt to be false"
            raise InvalidChatInput("continue_final_message", reason)
        named = "tool_use" if tools is not None and "tool_use" in self._templates else "default"
        source, template, normalizer = self._templates[named]
        chat = normalizer.normalize(messages)
        final_text = _mark_end(chat[-1], source) if continue_final_message else ""
        rendered = _render(
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


def _parse(environment: TemplateSandbox, source: str) -> nodes.Template:
    try:
        return environment.parse(source)
    except RecursionError as error:
        raise TemplateError("the template is nested too deeply") from error


def _render(template: jinja2.Template, variables: dict[str, Any]) -> str:
    try:
        return render(template, variables)
    except TemplateError as error:
        whole, field = without_broken_arguments(variables["messages"])
        if field is None:
            raise
        render(
            template, {**variables, "messages": whole}
        )  # raises if the failure has another reason
        reason = "is not a JSON object, which this model's template needs; leave the call out"
        raise InvalidChatInput(field, reason) from error


def _mark_end(message: dict[str, Any], source: str) -> str:
    """Marks the end of the message's text; returns the text without the mark."""
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
