"""The base of all wire formats."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from openinfer_contract import GenerateRequest, TokenLogprobs
from openinfer_frontend.errors import ApiError
from openinfer_frontend.generation._generation import Delta, Usage
from openinfer_frontend.protocols.openai._logprobs import TokenNames
from openinfer_text import Content, Piece, Reasoning

REASONING_NAMES = ("reasoning", "reasoning_content")
"""Names of the reasoning field in chat completions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatOptions:
    """Options of a response, from the request and the configuration."""

    response_id: str
    request_id: str
    """The id of the HTTP request, as in the header X-Request-Id."""
    model: str
    names: TokenNames
    return_token_ids: bool = False
    return_timings: bool = False
    include_usage: bool = False
    """Whether a stream ends with the usage, in protocols that let clients choose."""
    continuous_usage: bool = False
    """Whether every chunk has the usage so far, in protocols that let clients choose."""
    reasoning_names: tuple[str, ...] = REASONING_NAMES
    """The names of the reasoning field in this response."""
    include_reasoning: bool = True
    echoes: Sequence[str] = ()
    """The echoed text of each prompt; empty if no prompt is echoed."""
    num_top_echoed: int | None = None
    """Alternatives to each echoed token; None for no logprobs of an echo."""
    num_top_prompt: int | None = None
    """Alternatives in `prompt_logprobs`; None for no such field."""
    is_parsed: bool = False
    """Whether the text is parsed for reasoning and tool calls."""


class WireFormat(ABC):
    """The wire format of one response, whole or as events; belongs to its task.

    A stream is one `opening` for each choice and its `chunk`s, then one `ending` or one `failure`.
    A whole response is the `body` of all deltas that were passed to `add`.
    """

    def __init__(
        self, options: FormatOptions, requests: Sequence[GenerateRequest], num_samples: int
    ) -> None:
        """Makes a format for these choices; each prompt has `num_samples` of them."""
        self.options = options
        self._requests = requests
        self._num_samples = num_samples

    @abstractmethod
    def opening(self, index: int, usage: Usage, prompt_logprobs: TokenLogprobs | None) -> bytes:
        """Returns the events before the first chunk of a choice.

        Args:
            index: of the choice.
            usage: so far.
            prompt_logprobs: from the prompt's second token on, if they were asked for.
        """

    @abstractmethod
    def chunk(self, delta: Delta, usage: Usage | None) -> bytes:
        """Returns the events of one delta; usage is given if every chunk has it."""

    @abstractmethod
    def ending(self, usage: Usage) -> bytes:
        """Returns the events after the last chunk of all choices."""

    @abstractmethod
    def failure(self, error: ApiError) -> bytes:
        """Returns the last event of a stream that fails after its opening."""

    @abstractmethod
    def add(self, delta: Delta) -> None:
        """Adds a delta to a response that is not streamed."""

    @abstractmethod
    def body(self, usage: Usage, prompt_logprobs: Sequence[TokenLogprobs | None]) -> dict[str, Any]:
        """Returns the whole response, with the logprobs of each choice's prompt."""


def shown_pieces(delta: Delta, options: FormatOptions) -> Sequence[Piece]:
    """Returns the pieces of a delta, without reasoning if the client wants none."""
    if delta.parsed is None:
        return [Content(delta.text)] if delta.text else ()
    if options.include_reasoning:
        return delta.parsed
    return [piece for piece in delta.parsed if not isinstance(piece, Reasoning)]
