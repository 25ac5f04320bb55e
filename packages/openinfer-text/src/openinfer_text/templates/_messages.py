"""Messages of a request, normalised to the form that a template reads.

Clients send OpenAI's forms. Published templates expect others in five places: content as a list of
parts, arguments of tool calls as a JSON string, null content beside tool calls, the developer role,
and three names for reasoning.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from jinja2 import nodes

from openinfer_text.errors import InvalidChatInput

ContentFormat = Literal["string", "openai"]
"""Form of `content` that a template reads: a string, or OpenAI's list of typed parts."""

_TEXT_PARTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
}
ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
"""Roles that a message may have, whatever the template."""
_MAY_SAY_NOTHING = ("assistant", "function")
"""Roles whose content may be null or missing, as at OpenAI: they have calls or reasoning."""
_CONTENT_FORMS = "a string or a list of content parts"
_REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")


class MessageNormalizer:
    """Normalises messages for one template; immutable, any thread."""

    def __init__(
        self, *, content_format: ContentFormat, wraps_strings: bool, words: frozenset[str]
    ) -> None:
        """Keeps the facts about the template.

        Args:
            content_format: form of `content` that the template reads.
            wraps_strings: with "openai": whether plain strings become a list of one part.
            words: strings in the template's code. A role among them is accepted. A template
                without `developer` gets `system` instead; one with `tool` gets no `function`.
        """
        self.content_format = content_format
        self._wraps_strings = wraps_strings
        self._roles = ROLES | words
        self._keeps_developer = "developer" in words
        self._knows_tool = "tool" in words

    def normalize(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Returns new messages in the template's form; the given ones are not changed.

        Raises:
            InvalidChatInput: a field cannot be used; names it, such as `messages[2].role`.
        """
        if not messages:
            raise InvalidChatInput("messages", "must hold at least one message")
        return [self._one(message, f"messages[{i}]") for i, message in enumerate(messages)]

    def _one(self, message: Mapping[str, Any], field: str) -> dict[str, Any]:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise InvalidChatInput(f"{field}.role", "must be a string")
        if message["role"] not in self._roles:
            # Templates skip messages of a role that they do not know.
            known = ", ".join(sorted(ROLES))
            raise InvalidChatInput(f"{field}.role", f"is {message['role']!r}; use one of {known}")
        if message.get("content") is None and message["role"] not in _MAY_SAY_NOTHING:
            is_missing = "content" not in message
            reason = "is missing" if is_missing else f"must not be null: {_CONTENT_FORMS}"
            raise InvalidChatInput(f"{field}.content", reason)
        shaped = {key: value for key, value in message.items() if value is not None}
        if not isinstance(shaped.get("tool_call_id", ""), str):
            raise InvalidChatInput(f"{field}.tool_call_id", "must be a string")
        if shaped["role"] == "developer" and not self._keeps_developer:
            shaped["role"] = "system"
        if shaped["role"] == "function" and self._knows_tool:
            # `function` is the former name of the role. In templates, the word means a call's
            # `function`, not the role.
            shaped["role"] = "tool"
        if "function_call" in shaped:
            raise InvalidChatInput(f"{field}.function_call", "is not supported; use tool_calls")
        shaped["content"] = self._content(shaped.get("content", ""), f"{field}.content")
        calls = shaped.pop("tool_calls", None)
        if calls:
            shaped["tool_calls"] = _tool_calls(calls, f"{field}.tool_calls")
        reasoning = next((shaped[key] for key in _REASONING_FIELDS if key in shaped), None)
        if reasoning is not None:
            shaped["reasoning_content"] = reasoning
            shaped.setdefault("thinking", reasoning)
        return shaped

    def _content(self, content: Any, field: str) -> str | list[dict[str, Any]]:
        if isinstance(content, str):
            wrap = self.content_format == "openai" and self._wraps_strings
            return [{"type": "text", "text": content}] if wrap else content
        if not isinstance(content, Sequence):
            raise InvalidChatInput(field, f"must be {_CONTENT_FORMS}")
        texts = [_part_text(part, f"{field}[{index}]") for index, part in enumerate(content)]
        if self.content_format == "openai":
            return [{"type": "text", "text": text} for text in texts]
        return "\n".join(texts)


def _part_text(part: Any, field: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(kind, str) or kind not in _TEXT_PARTS:
        known = ", ".join(_TEXT_PARTS)
        raise InvalidChatInput(f"{field}.type", f"is {kind!r}; this model reads text ({known})")
    text = part.get(_TEXT_PARTS[kind])
    if not isinstance(text, str):
        raise InvalidChatInput(f"{field}.{_TEXT_PARTS[kind]}", "must be a string")
    return text


def _tool_calls(calls: Any, field: str) -> list[dict[str, Any]]:
    if not isinstance(calls, Sequence) or isinstance(calls, str):
        raise InvalidChatInput(field, "must be a list of tool calls")
    shaped = []
    for index, call in enumerate(calls):
        where = f"{field}[{index}].function"
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping):
            raise InvalidChatInput(where, "must be an object")
        if not isinstance(function.get("name"), str):
            raise InvalidChatInput(f"{where}.name", "must be a string")
        arguments = _arguments(function.get("arguments"), f"{where}.arguments")
        shaped.append({**call, "function": {**function, "arguments": arguments}})
    return shaped


def _arguments(arguments: Any, field: str) -> dict[str, Any] | str:
    """Returns arguments as the object that templates write; clients send JSON in a string.

    A string that is not a JSON object is kept: the model may have been cut off while it wrote it,
    and the client sends it again with every turn.
    """
    if arguments is None or arguments == "":
        return {}
    if isinstance(arguments, dict):
        return arguments
    if not isinstance(arguments, str):
        raise InvalidChatInput(field, "must be a JSON object, as a string")
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def without_broken_arguments(
    messages: Sequence[dict[str, Any]],
) -> tuple[list[dict[str, Any]], str | None]:
    """Returns messages in which arguments that are not objects are replaced by empty ones.

    Returns:
        The messages, and the path of the first replaced field; None if none was replaced.
    """
    fields = []

    def whole(call: dict[str, Any], field: str) -> dict[str, Any]:
        function = call["function"]
        if not isinstance(function["arguments"], str):
            return call
        fields.append(f"{field}.function.arguments")
        return {**call, "function": {**function, "arguments": {}}}

    shaped = []
    for i, message in enumerate(messages):
        calls = [
            whole(call, f"messages[{i}].tool_calls[{j}]")
            for j, call in enumerate(message.get("tool_calls", ()))
        ]
        shaped.append({**message, "tool_calls": calls} if calls else message)
    return shaped, next(iter(fields), None)


def normalizer_for(
    template: nodes.Template, *, content_format: ContentFormat | Literal["auto"] = "auto"
) -> MessageNormalizer:
    """Returns the normalizer for a parsed template.

    A template that loops over a message's content reads parts, any other template strings. If it
    also tests whether the content is a string, it gets strings unchanged.
    """
    aliases = {
        assign.target.name
        for assign in template.find_all(nodes.Assign)
        if isinstance(assign.target, nodes.Name) and _is_content(assign.node, frozenset())
    }
    names = frozenset(aliases)
    loops = any(_is_content(loop.iter, names) for loop in template.find_all(nodes.For))
    tests = any(
        test.name == "string" and _is_content(test.node, names)
        for test in template.find_all(nodes.Test)
    )
    detected: ContentFormat = "openai" if loops else "string"
    return MessageNormalizer(
        content_format=detected if content_format == "auto" else content_format,
        wraps_strings=not tests,
        words=frozenset(
            const.value for const in template.find_all(nodes.Const) if isinstance(const.value, str)
        ),
    )


def _is_content(node: nodes.Node | None, aliases: frozenset[str]) -> bool:
    while isinstance(node, nodes.Filter):
        node = node.node
    if isinstance(node, nodes.Name):
        return node.name in aliases
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    return False
