"""What the wire formats of all protocols have in common."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from openinfer_contract import GenerateRequest, TokenLogprobs
from openinfer_frontend.errors import ApiError
from openinfer_frontend.generation._generation import Delta, Usage
from openinfer_frontend.protocols.openai._logprobs import TokenNames
from openinfer_text import Content, OutputParser, Piece, Reasoning

REASONING_NAMES = ("reasoning", "reasoning_content")
"""What clients know reasoning by, in chat completions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatOptions:
    """What the client wants to see."""

    response_id: str
    request_id: str
    """Of the HTTP request: what the header X-Request-Id says."""
    model: str
    names: TokenNames
    return_token_ids: bool = False
    return_timings: bool = False
    include_usage: bool = False
    """Whether a stream ends with the usage, where its protocol lets clients choose."""
    continuous_usage: bool = False
    """Whether every chunk has the usage so far, likewise."""
    reasoning_names: tuple[str, ...] = REASONING_NAMES
    """Those of them that this answer has."""
    include_reasoning: bool = True
    echoes: Sequence[str] = ()
    """Per prompt the text that goes before the output; none, or one each."""
    num_top_echoed: int | None = None
    """Alternatives beside an echoed token; None for no logprobs of an echo."""
    num_top_prompt: int | None = None
    """Alternatives in `prompt_logprobs`; None for no such field."""
    parsers: Sequence[OutputParser] = ()
    """Per choice what finds reasoning and tool calls; none, or one each."""


class WireFormat(ABC):
    """The wire format of one response, whole or event by event; belongs to its task.

    A stream is per choice one `opening` and its `chunk`s, then one `ending`, or a `failure`. A
    whole response is what `add` was told of, as `body`.
    """

    def __init__(
        self, options: FormatOptions, requests: Sequence[GenerateRequest], num_samples: int
    ) -> None:
        """A format for these choices, `num_samples` of each prompt."""
        self.options = options
        self._requests = requests
        self._num_samples = num_samples

    @abstractmethod
    def opening(self, index: int, usage: Usage, prompt_logprobs: TokenLogprobs | None) -> bytes:
        """What precedes the first chunk of a choice.

        Args:
            index: of the choice.
            usage: so far.
            prompt_logprobs: from its prompt's second token on, if these were scored.
        """

    @abstractmethod
    def chunk(self, delta: Delta, usage: Usage | None) -> bytes:
        """The events of one delta, with the usage so far if `continuous_usage` is wanted."""

    @abstractmethod
    def ending(self, usage: Usage) -> bytes:
        """What follows the last chunk of all."""

    @abstractmethod
    def failure(self, error: ApiError) -> bytes:
        """The last event of a stream that fails after its opening."""

    @abstractmethod
    def add(self, delta: Delta) -> None:
        """Takes the next part of a response that is not streamed."""

    @abstractmethod
    def body(self, usage: Usage, prompt_logprobs: Sequence[TokenLogprobs | None]) -> dict[str, Any]:
        """The whole response, with the scores of each choice's prompt."""


class ParsedChoice:
    """One choice's text as pieces, and how many of its tokens were reasoning.

    Tokens are counted with the delta they came in, which is one step's; where a slow reader finds
    several merged, and reasoning and other text among them, they are shared out by their length.
    """

    def __init__(self, parser: OutputParser | None, *, include_reasoning: bool = True) -> None:
        """Starts a choice; without a parser all of it is content."""
        self._parser = parser
        self._include_reasoning = include_reasoning
        self._is_reasoning = False
        self.num_reasoning_tokens = 0

    def pieces(self, delta: Delta) -> list[Piece]:
        """What the delta completes; at the end also what was held back."""
        if self._parser is None:
            return [Content(delta.text)] if delta.text else []
        pieces = self._parser.push(delta.text)
        if delta.finish_reason is not None:
            pieces += self._parser.finish()
        self._count(pieces, len(delta.token_ids))
        if not self._include_reasoning:
            pieces = [piece for piece in pieces if not isinstance(piece, Reasoning)]
        return pieces

    def _count(self, pieces: Sequence[Piece], num_tokens: int) -> None:
        thoughts = [piece for piece in pieces if isinstance(piece, Reasoning)]
        if pieces:
            self._is_reasoning = isinstance(pieces[-1], Reasoning)
        if len(thoughts) == len(pieces):
            self.num_reasoning_tokens += num_tokens if self._is_reasoning else 0
            return
        num_thought = sum(len(piece.text) for piece in thoughts)
        num_chars = sum(len(getattr(piece, "text", "")) for piece in pieces)
        self.num_reasoning_tokens += round(num_tokens * num_thought / max(1, num_chars))

    def finish_reason(self, reason: str) -> str:
        """Why the choice ended, `tool_calls` among the reasons."""
        return reason if self._parser is None else self._parser.finish_reason(reason)
