"""`AssistantTurn`: the pieces of one output as a message of the conversation."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from openinfer_text.parsers._pieces import (
    Content,
    Piece,
    Reasoning,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)


@dataclass(slots=True)
class ToolCall:
    """One tool call, possibly incomplete."""

    call_id: str
    name: str
    arguments: str = ""
    """A JSON object once the call is complete."""
    is_whole: bool = False

    def as_json(self) -> dict[str, Any]:
        """Returns OpenAI's tool call object."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.call_id, "type": "function", "function": function}


class AssistantTurn:
    """The collected pieces of one output; one thread at a time.

    Attributes:
        calls: in order of their index.
    """

    def __init__(self) -> None:
        self.calls: list[ToolCall] = []
        self._contents: list[str] = []
        self._reasonings: list[str] = []

    @property
    def content(self) -> str:
        """The content; "" if there is none."""
        return "".join(self._contents)

    @property
    def reasoning(self) -> str:
        """The text of the reasoning, "" if there is none."""
        return "".join(self._reasonings)

    def add(self, pieces: Iterable[Piece]) -> None:
        """Appends the next pieces."""
        for piece in pieces:
            if isinstance(piece, Content):
                self._contents.append(piece.text)
            elif isinstance(piece, Reasoning):
                self._reasonings.append(piece.text)
            elif isinstance(piece, ToolCallStart):
                self.calls.append(ToolCall(piece.call_id, piece.name))
            elif isinstance(piece, ToolCallArguments):
                self.calls[piece.index].arguments += piece.text
            elif isinstance(piece, ToolCallEnd):
                self.calls[piece.index].is_whole = True

    def message(self) -> dict[str, Any]:
        """Returns OpenAI's assistant message, with reasoning under both of its names.

        Incomplete calls are included.
        """
        has_more = bool(self.calls or self._reasonings)
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if has_more and not message["content"]:
            message["content"] = None
        if self._reasonings:
            message["reasoning"] = message["reasoning_content"] = self.reasoning
        if self.calls:
            message["tool_calls"] = [call.as_json() for call in self.calls]
        return message
