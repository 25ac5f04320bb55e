"""The wire format of chat completions with reasoning and tool calls."""

from collections.abc import Iterable, Sequence
from typing import Any

from openinfer_contract import GenerateRequest
from openinfer_frontend.generation._generation import Delta
from openinfer_frontend.protocols._json import to_json
from openinfer_frontend.protocols._wire_format import (
    REASONING_NAMES,
    FormatOptions,
    shown_pieces,
)
from openinfer_frontend.protocols.openai._choices_format import ChatFormat
from openinfer_text import (
    AssistantTurn,
    Content,
    Piece,
    Reasoning,
    ToolCallArguments,
    ToolCallStart,
)


class ParsedChatFormat(ChatFormat):
    """A `chat.completion` with reasoning and tool calls.

    One engine event is one chunk: everything that it completes is in one delta, which may be empty.
    Logprobs and token ids are those of all tokens, whichever field their text is in.
    """

    _open = b'"delta":'
    _close = b""

    def __init__(
        self, options: FormatOptions, requests: Sequence[GenerateRequest], num_samples: int
    ) -> None:
        """Makes a format for these choices; each prompt has `num_samples` of them."""
        super().__init__(options, requests, num_samples)
        self._num_reasoning_tokens = [0] * len(requests)
        self._turns = [AssistantTurn() for _ in requests]

    def add(self, delta: Delta) -> None:
        """Adds a delta to a choice."""
        super().add(delta)
        self._turns[delta.index].add(self._take(delta))

    def _payload(self, delta: Delta) -> bytes:
        pieces = self._take(delta)
        if len(pieces) == 1 and isinstance(pieces[0], Content):
            return b'{"content":%b}' % to_json(pieces[0].text)
        return to_json(_delta(pieces, self.options.reasoning_names))

    def _take(self, delta: Delta) -> Sequence[Piece]:
        """Returns the pieces of a delta, and records its reasoning tokens."""
        self._num_reasoning_tokens[delta.index] = delta.num_reasoning_tokens
        return shown_pieces(delta, self.options)

    def _content(self, index: int, text: str) -> dict[str, Any]:
        message = self._turns[index].message()
        for name in REASONING_NAMES:
            if name not in self.options.reasoning_names:
                message.pop(name, None)
        return {"message": message}

    @property
    def num_reasoning_tokens(self) -> int:
        """Number of output tokens that are reasoning."""
        return sum(self._num_reasoning_tokens)


def _delta(pieces: Iterable[Piece], reasoning_names: Sequence[str]) -> dict[str, Any]:
    """Returns OpenAI's delta object; only the first delta of a call has its id and name."""
    delta: dict[str, Any] = {}
    calls: dict[int, dict[str, Any]] = {}
    for piece in pieces:
        if isinstance(piece, Content):
            delta["content"] = delta.get("content", "") + piece.text
        elif isinstance(piece, Reasoning):
            for name in reasoning_names:
                delta[name] = delta.get(name, "") + piece.text
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
