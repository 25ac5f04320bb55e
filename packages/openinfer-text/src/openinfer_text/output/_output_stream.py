"""`OutputStream`: one choice from token ids to the pieces of a response, until it ends."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from openinfer_contract import Finished, FinishReason
from openinfer_text.output._output_text import OutputText
from openinfer_text.parsers._output_parser import OutputParser
from openinfer_text.parsers._pieces import Content, Piece, Reasoning


@dataclass(slots=True, kw_only=True)
class OutputDelta:
    """The part of a choice that new tokens add."""

    text: str
    """New visible text, reasoning and calls included; "" while everything is held back."""
    token_ids: Sequence[int]
    """Tokens of the choice; tokens after a stop string are left out."""
    starts: Sequence[int] = ()
    """Offsets of `token_ids` in the choice's text, in characters, if they were asked for."""
    parsed: list[Piece] | None = None
    """The pieces that a parser made of the text; None without a parser."""
    reason: FinishReason | None = None
    """Why the text ended; None while the choice continues."""
    finish_reason: str | None = None
    """`reason`, or `tool_calls` if the text ended after complete calls."""
    stop_reason: str | int | None = None
    """The stop string or stop token id that ended the text; None for an end-of-sequence id."""

    @property
    def pieces(self) -> list[Piece]:
        """The text as pieces; without a parser all of it is content."""
        if self.parsed is not None:
            return self.parsed
        return [Content(self.text)] if self.text else []


@dataclass(slots=True)
class OutputStream:
    """One choice: detokeniser, stop strings, parser and end; one thread at a time.

    Events of the engine may be pushed one by one or merged: the text, the pieces and the end do not
    change.
    """

    output: OutputText
    """Turns token ids into text, up to a stop string."""
    parser: OutputParser | None = None
    """Finds reasoning and tool calls. Its `markers` must be shown tokens of `output`."""
    eos_token_ids: Collection[int] = ()
    """Stop ids that are not reported as `stop_reason`."""
    is_done: bool = field(default=False, init=False)
    """Whether the choice has ended. A stop string ends it before the engine does: the caller then
    aborts the request."""
    num_tokens: int = field(default=0, init=False)
    """Output tokens so far."""
    num_reasoning_tokens: int = field(default=0, init=False)
    """Number of reasoning tokens among the output tokens. If one push has both reasoning and other
    text, its tokens are divided in proportion to the lengths of the texts."""
    _is_reasoning: bool = field(default=False, init=False)

    def push(self, token_ids: Sequence[int], end: Finished | None = None) -> OutputDelta:
        """Appends tokens, and ends the choice if the engine has ended the request.

        Args:
            token_ids: sampled since the last push; the stop id too, as the engine delivers it.
            end: the engine's end of the request.
        """
        assert not self.is_done, "nothing is appended to a choice that has ended"
        text, stopped_by, num_used = self.output.push(token_ids)
        if end is not None and stopped_by is None:
            rest, stopped_by, _ = self.output.finish()
            text += rest
        if num_used < len(token_ids):
            token_ids = token_ids[:num_used]
        self.num_tokens += num_used
        delta = OutputDelta(text=text, token_ids=token_ids)
        if self.output.is_located:
            delta.starts = self.output.take_starts()
        if stopped_by is not None:
            self.is_done = True
            delta.reason, delta.stop_reason = "stop", stopped_by
        elif end is not None:
            self.is_done = True
            delta.reason = end.reason
            if end.stop_token_id not in self.eos_token_ids:
                delta.stop_reason = end.stop_token_id
        delta.finish_reason = delta.reason
        if self.parser is not None:
            self._parse(self.parser, delta)
        return delta

    def _parse(self, parser: OutputParser, delta: OutputDelta) -> None:
        pieces = parser.push(delta.text)
        if delta.reason is not None:
            pieces += parser.finish()
            delta.finish_reason = parser.finish_reason(delta.reason)
        delta.parsed = pieces
        self._count_reasoning(pieces, len(delta.token_ids))

    def _count_reasoning(self, pieces: Sequence[Piece], num_tokens: int) -> None:
        thoughts = [piece for piece in pieces if isinstance(piece, Reasoning)]
        if pieces:
            self._is_reasoning = isinstance(pieces[-1], Reasoning)
        if len(thoughts) == len(pieces):
            self.num_reasoning_tokens += num_tokens if self._is_reasoning else 0
            return
        num_thought = sum(len(piece.text) for piece in thoughts)
        num_chars = sum(len(getattr(piece, "text", "")) for piece in pieces)
        self.num_reasoning_tokens += round(num_tokens * num_thought / max(1, num_chars))
