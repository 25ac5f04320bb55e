"""Chat completions whose text is parsed: reasoning and tool calls in fields of their own."""

from collections.abc import Iterable
from json.encoder import encode_basestring
from typing import Any

from openinfer_frontend._exchange import to_json
from openinfer_frontend._formats import ChatFormat
from openinfer_frontend._generation import Delta
from openinfer_text import (
    AssistantTurn,
    Content,
    Piece,
    Reasoning,
    ToolCallArguments,
    ToolCallStart,
)


class ParsedChatFormat(ChatFormat):
    """`chat.completion` by the options' parsers, one each choice.

    One event stays one chunk: whatever it completes stands side by side in one delta, possibly
    nothing. Logprobs and token ids are those of all tokens, whichever field their text went to.
    """

    _open = b'"delta":'
    _close = b""

    def _payload(self, delta: Delta) -> bytes:
        parser = self.options.parsers[delta.index]
        pieces = parser.push(delta.text)
        if delta.finish_reason is not None:
            pieces += parser.finish()
        if len(pieces) == 1 and isinstance(pieces[0], Content):
            return b'{"content":%b}' % encode_basestring(pieces[0].text).encode()
        return to_json(_delta(pieces))

    def _reason(self, index: int, finish_reason: str | None) -> str | None:
        if finish_reason is None:
            return None
        return self.options.parsers[index].finish_reason(finish_reason)

    def _content(self, index: int, text: str) -> dict[str, Any]:
        parser, turn = self.options.parsers[index], AssistantTurn()
        turn.add(parser.push(text))
        turn.add(parser.finish())
        return {"message": turn.message()}


def _delta(pieces: Iterable[Piece]) -> dict[str, Any]:
    """OpenAI's delta object; id and name of a call stand in its first one only."""
    delta: dict[str, Any] = {}
    calls: dict[int, dict[str, Any]] = {}
    for piece in pieces:
        if isinstance(piece, Content):
            delta["content"] = delta.get("content", "") + piece.text
        elif isinstance(piece, Reasoning):
            delta["reasoning"] = delta.get("reasoning", "") + piece.text
            delta["reasoning_content"] = delta["reasoning"]
        elif isinstance(piece, ToolCallStart):
            function = {"name": piece.name, "arguments": ""}
            head = {"index": piece.index, "id": piece.call_id, "type": "function"}
            calls[piece.index] = head | {"function": function}
        elif isinstance(piece, ToolCallArguments):
            empty = {"index": piece.index, "function": {"arguments": ""}}
            calls.setdefault(piece.index, empty)["function"]["arguments"] += piece.text
    if calls:
        delta["tool_calls"] = list(calls.values())
    return delta
