"""Ids of the calls in a conversation, renamed for models that read ids of one form only."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class CallRenaming(Protocol):
    """Renaming of calls for models that read ids of one form; optional for a `ParserFactory`."""

    def rename_call(self, call_id: str, name: str, index: int, /) -> str:
        """Returns the id that the model reads.

        Args:
            call_id: the client's id, "" if it sent none.
            name: name of the tool.
            index: index of the call among all calls of the conversation, from 0.
        """


def name_calls(messages: Sequence[Any], parser: object) -> tuple[Sequence[Any], tuple[str, ...]]:
    """Returns the messages with ids in the parser's form, and the ids of their calls in order.

    Tool results get the new ids of their calls. Malformed messages are not changed; they are
    refused later.
    """
    if not any(isinstance(m, Mapping) and m.get("tool_calls") for m in messages):
        return messages, ()
    rename = parser.rename_call if isinstance(parser, CallRenaming) else _keep
    named: list[Any] = []
    ids: list[str] = []
    new_ids: dict[str, str] = {}
    for message in messages:
        if not isinstance(message, Mapping):
            named.append(message)
            continue
        calls = message.get("tool_calls")
        if isinstance(calls, list | tuple):
            renamed = []
            for call in calls:
                old_id, name = _describe(call)
                if name is not None:
                    ids.append(rename(old_id, name, len(ids)))
                    new_ids[old_id] = ids[-1]
                    call = {**call, "id": ids[-1]} if ids[-1] != old_id else call
                renamed.append(call)
            message = {**message, "tool_calls": renamed}
        call_id = message.get("tool_call_id")
        if isinstance(call_id, str) and call_id in new_ids:
            message = {**message, "tool_call_id": new_ids[call_id]}
        named.append(message)
    return named, tuple(ids)


def _keep(call_id: str, name: str, index: int, /) -> str:
    return call_id


def _describe(call: Any) -> tuple[str, str | None]:
    """Returns id and name of a call; the name is None if the value is not a call."""
    function = call.get("function") if isinstance(call, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    call_id = call.get("id") if isinstance(call, Mapping) else None
    return (
        call_id if isinstance(call_id, str) else "",
        name if isinstance(name, str) else None,
    )
