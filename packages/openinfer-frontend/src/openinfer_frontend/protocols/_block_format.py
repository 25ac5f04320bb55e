"""An answer as a row of blocks: how Responses and Messages see what chat completions call a choice.

    pieces -> reasoning block | text block | call block, one open at a time

What a protocol makes of a block (names, events, objects) is its own business; when one begins and
ends is decided here, once.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from openinfer_contract import GenerateRequest
from openinfer_frontend.errors import ApiError
from openinfer_frontend.generation._generation import Delta
from openinfer_frontend.protocols._wire_format import FormatOptions, ParsedChoice, WireFormat
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
    """One block, as far as it is known."""

    index: int
    """Its place in the answer."""
    kind: BlockKind
    call_id: str = ""
    name: str = ""
    """Of the function, in a call."""
    parts: list[str] = field(default_factory=list)
    is_whole: bool = False
    """Whether the model ended it; one that it was cut off in is not whole."""

    @property
    def text(self) -> str:
        """Reasoning, text, or the arguments of a call."""
        return "".join(self.parts)


class BlockFormat(WireFormat):
    """A response of one choice that consists of blocks.

    White space alone makes no text block: models put it between reasoning and calls, and clients
    take every block for something to show.
    """

    def __init__(
        self, options: FormatOptions, requests: Sequence[GenerateRequest], num_samples: int
    ) -> None:
        """A format for the one choice."""
        super().__init__(options, requests, num_samples)
        parser = options.parsers[0] if options.parsers else None
        self._choice = ParsedChoice(parser, include_reasoning=options.include_reasoning)
        self._open: Block | None = None
        self._blank = ""
        self.blocks: list[Block] = []
        self.finish_reason = ""
        """Why the answer ended, once it has."""
        self.stop_string: str | None = None
        """The stop string that ended it."""

    @property
    def num_reasoning_tokens(self) -> int:
        """How many of the output's tokens were reasoning."""
        return self._choice.num_reasoning_tokens

    def add(self, delta: Delta) -> None:
        """Takes the next part of a response that is not streamed."""
        self._take(delta)

    def chunk(self, delta: Delta, usage: object) -> bytes:
        """The events of one delta, possibly none."""
        return self._take(delta)

    def _take(self, delta: Delta) -> bytes:
        parts = [self._piece(piece) for piece in self._choice.pieces(delta)]
        if delta.finish_reason is not None:
            # The end of a call is a piece of its own: one that is open still lacks it.
            is_call = self._open is not None and self._open.kind == "call"
            parts.append(self._end_block(is_whole=delta.finish_reason == "stop" and not is_call))
            self._finish(delta.finish_reason, delta.stop_reason)
        return b"".join(parts)

    def _finish(self, finish_reason: str, stop_reason: str | int | None) -> None:
        if finish_reason == "abort":
            raise ApiError(400, "the request was aborted")
        self.finish_reason = self._choice.finish_reason(finish_reason)
        self.stop_string = stop_reason if isinstance(stop_reason, str) else None

    def _piece(self, piece: Piece) -> bytes:
        if isinstance(piece, Content):
            return self._content(piece.text)
        if isinstance(piece, Reasoning):
            return self._more("reasoning", piece.text)
        if isinstance(piece, ToolCallStart):
            return self._begin("call", piece.call_id, piece.name)
        if isinstance(piece, ToolCallArguments):
            return self._more("call", piece.text)
        assert isinstance(piece, ToolCallEnd)
        return self._end_block(is_whole=True)

    def _content(self, text: str) -> bytes:
        if self._open is None or self._open.kind != "text":
            self._blank += text
            if self._blank.isspace() or not self._blank:
                return b""
            text, self._blank = self._blank, ""
        return self._more("text", text)

    def _more(self, kind: BlockKind, text: str) -> bytes:
        begun = b""
        if self._open is None or self._open.kind != kind:
            begun = self._begin(kind)
        assert self._open is not None
        self._open.parts.append(text)
        return begun + self._delta_events(self._open, text)

    def _begin(self, kind: BlockKind, call_id: str = "", name: str = "") -> bytes:
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
        """A block begins."""

    @abstractmethod
    def _delta_events(self, block: Block, text: str) -> bytes:
        """The open block goes on."""

    @abstractmethod
    def _stop_events(self, block: Block) -> bytes:
        """A block ends."""
