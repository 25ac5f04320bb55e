"""A response as a sequence of blocks, for Responses and Messages.

  pieces -> reasoning block | text block | call block, one open at a time

This module decides when a block begins and ends. The protocols decide its names, events and
objects.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from openinfer_contract import GenerateRequest
from openinfer_frontend.errors import ApiError
from openinfer_frontend.generation._generation import Delta
from openinfer_frontend.protocols._wire_format import FormatOptions, WireFormat, shown_pieces
from openinfer_text import (
    Content,
    Piece,
    Reasoning,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)

BlockKind = Literal["reasoning", "text", "call"]


@dataclass(slots=True, kw_only=True)
class Block:
    """The state of one block."""

    index: int
    """Index of the block in the response."""
    kind: BlockKind
    call_id: str = ""
    name: str = ""
    """Name of the function, in a call."""
    parts: list[str] = field(default_factory=list)
    is_whole: bool = False
    """Whether the model completed it; False for a block that was cut off."""

    @property
    def text(self) -> str:
        """Reasoning, text, or the arguments of a call."""
        return "".join(self.parts)


class BlockFormat(WireFormat):
    """A response with one choice, as a sequence of blocks.

    Text of white space alone makes no block, because models put white space between reasoning and
    calls, and clients display every block.
    """

    def __init__(
        self, options: FormatOptions, requests: Sequence[GenerateRequest], num_samples: int
    ) -> None:
        """Makes a format for one choice."""
        super().__init__(options, requests, num_samples)
        self._open: Block | None = None
        self._blank = ""
        self.blocks: list[Block] = []
        self.num_reasoning_tokens = 0
        """Number of output tokens that are reasoning."""
        self.finish_reason = ""
        """The finish reason, once the response has ended."""
        self.stop_string: str | None = None
        """The stop string that ended the response, if one did."""

    def add(self, delta: Delta) -> None:
        """Adds a delta to a response that is not streamed."""
        self._add_delta(delta)

    def chunk(self, delta: Delta, usage: object) -> bytes:
        """Returns the events of one delta; there may be none."""
        return self._add_delta(delta)

    def _add_delta(self, delta: Delta) -> bytes:
        self.num_reasoning_tokens = delta.num_reasoning_tokens
        parts = [self._piece_events(piece) for piece in shown_pieces(delta, self.options)]
        if delta.finish_reason is not None:
            # The end of a call is a piece of its own. A call that is still open was cut off.
            is_call = self._open is not None and self._open.kind == "call"
            parts.append(self._end_block(is_whole=delta.reason == "stop" and not is_call))
            self._finish(delta.finish_reason, delta.stop_reason)
        return b"".join(parts)

    def _finish(self, finish_reason: str, stop_reason: str | int | None) -> None:
        if finish_reason == "abort":
            raise ApiError(400, "the request was aborted")
        self.finish_reason = finish_reason
        self.stop_string = stop_reason if isinstance(stop_reason, str) else None

    def _piece_events(self, piece: Piece) -> bytes:
        if isinstance(piece, Content):
            return self._content_events(piece.text)
        if isinstance(piece, Reasoning):
            return self._text_events("reasoning", piece.text)
        if isinstance(piece, ToolCallStart):
            return self._begin_block("call", piece.call_id, piece.name)
        if isinstance(piece, ToolCallArguments):
            return self._text_events("call", piece.text)
        assert isinstance(piece, ToolCallEnd)
        return self._end_block(is_whole=True)

    def _content_events(self, text: str) -> bytes:
        if self._open is None or self._open.kind != "text":
            self._blank += text
            if self._blank.isspace() or not self._blank:
                return b""
            text, self._blank = self._blank, ""
        return self._text_events("text", text)

    def _text_events(self, kind: BlockKind, text: str) -> bytes:
        begun = b""
        if self._open is None or self._open.kind != kind:
            begun = self._begin_block(kind)
        assert self._open is not None
        self._open.parts.append(text)
        return begun + self._delta_events(self._open, text)

    def _begin_block(self, kind: BlockKind, call_id: str = "", name: str = "") -> bytes:
        ended = self._end_block(is_whole=True)
        self._blank = ""
        block = Block(index=len(self.blocks), kind=kind, call_id=call_id, name=name)
        self._open = block
        self.blocks.append(block)
        return ended + self._start_events(block)

    def _end_block(self, *, is_whole: bool) -> bytes:
        block, self._open = self._open, None
        if block is None:
            return b""
        block.is_whole = is_whole
        return self._stop_events(block)

    @abstractmethod
    def _start_events(self, block: Block) -> bytes:
        """Returns the events that begin a block."""

    @abstractmethod
    def _delta_events(self, block: Block, text: str) -> bytes:
        """Returns the events that add text to the open block."""

    @abstractmethod
    def _stop_events(self, block: Block) -> bytes:
        """Returns the events that end a block."""
