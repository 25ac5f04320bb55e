"""One choice of an HTTP request while the engine works on it, and its timing."""

import time
from dataclasses import asdict, dataclass, field
from typing import Literal

from msgspec.structs import replace

from openinfer_contract import (
    End,
    Failed,
    Finished,
    GenerateRequest,
    TierTokens,
    TokenLogprobs,
    num_ids,
)
from openinfer_text import OutputStream

Loss = Literal["abort", "error"]


@dataclass(frozen=True, slots=True)
class Timing:
    """Durations of one choice, in seconds."""

    queue_s: float
    """Time in the engine's queue."""
    prefill_s: float | None
    """Time of the prefill, measured by the engine; None if a stop string ended the choice before
    the engine did."""
    decode_s: float | None
    """Time of the decode, measured as `prefill_s`."""
    first_token_s: float
    """From submission to the first token, measured here."""
    total_s: float
    """From submission to the end, measured here."""

    def as_json(self) -> dict[str, float | None]:
        """Returns the `timings` object of a response, rounded to microseconds."""
        values = asdict(self).items()
        return {name: value if value is None else round(value, 6) for name, value in values}


@dataclass(slots=True)
class Choice:
    """The state of one choice; belongs to its `Generation`."""

    request: GenerateRequest
    output: OutputStream = field(init=False)
    """Turns tokens into text. It is set after submission, so that the engine does not wait while it
    is made."""
    num_cached_tokens: int = 0
    cached: TierTokens = ()
    """`num_cached_tokens` by tier."""
    num_output_tokens: int = 0
    prompt_logprobs: TokenLogprobs | None = None
    queue_s: float = 0.0
    submitted_at: float = 0.0
    first_token_s: float | None = None
    """Seconds from submission."""
    last_token_at: float = 0.0
    output_ids: bytearray = field(default_factory=bytearray)
    """u32 column of the tokens sampled so far. If the engine dies, the next one continues after
    them."""
    is_resumed: bool = False
    is_done: bool = False
    has_left_engine: bool = False
    """Whether the engine has ended the choice, or was told to abort it."""
    loss: Loss | None = "abort"
    """The outcome that metrics count if the choice does not finish; None if the engine rejected
    it."""

    def record_end(self, end: End | None) -> None:
        """Records the engine's end of the choice, before anything acts on it."""
        if end is not None:
            self.has_left_engine = True
            if not isinstance(end, Finished):
                self.loss = "error" if isinstance(end, Failed) else None

    @property
    def arrival(self) -> float:
        """When the client's request was read, in monotonic seconds."""
        arrival = self.request.arrival
        return self.submitted_at if arrival is None else arrival

    @property
    def output_s(self) -> float:
        """Seconds from the first token to the last one."""
        return self.last_token_at - self.submitted_at - (self.first_token_s or 0.0)

    def remaining_request(self) -> GenerateRequest:
        """Returns the request to continue: its prompt ends with the tokens sampled so far."""
        output = bytes(self.output_ids)
        return replace(
            self.request,
            prompt_token_ids=self.request.prompt_token_ids + output,
            num_output_prefix=num_ids(output),
        )

    def timing(self, end: Finished | None) -> Timing:
        """Returns the durations until now.

        Args:
            end: the engine's last event; None if a stop string ended the choice.
        """
        total_s = time.monotonic() - self.submitted_at
        return Timing(
            queue_s=self.queue_s,
            prefill_s=None if end is None else end.timings.prefill_s,
            decode_s=None if end is None else end.timings.decode_s,
            first_token_s=total_s if self.first_token_s is None else self.first_token_s,
            total_s=total_s,
        )
