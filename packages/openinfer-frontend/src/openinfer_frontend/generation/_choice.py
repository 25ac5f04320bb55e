"""One choice of a request while the engine works on it, and where its time went."""

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
from openinfer_text import OutputText

Loss = Literal["abort", "error"]


@dataclass(frozen=True, slots=True)
class Timing:
    """Where a choice's time went, in seconds."""

    queue_s: float
    """Until it left the engine's queue."""
    prefill_s: float | None
    """The engine's word; None if a stop string ended the choice, and the engine with it."""
    decode_s: float | None
    """Likewise."""
    first_token_s: float
    """From its submission to its first token, here."""
    total_s: float
    """To its end, here."""

    def as_json(self) -> dict[str, float | None]:
        """The block that clients get, to the microsecond."""
        values = asdict(self).items()
        return {name: value if value is None else round(value, 6) for name, value in values}


@dataclass(slots=True)
class Choice:
    """What is known of one choice; belongs to its `Generation`."""

    request: GenerateRequest
    output: OutputText = field(init=False)
    """Set once the engine has the request: it takes a moment to make."""
    num_cached_tokens: int = 0
    cached: TierTokens = ()
    """The same by tier."""
    num_output_tokens: int = 0
    prompt_logprobs: TokenLogprobs | None = None
    queue_s: float = 0.0
    submitted_at: float = 0.0
    first_token_s: float | None = None
    """From its submission."""
    last_token_at: float = 0.0
    output_ids: bytearray = field(default_factory=bytearray)
    """u32 column of what was sampled so far: what another engine goes on from."""
    is_resumed: bool = False
    is_done: bool = False
    has_left_engine: bool = False
    """Whether the engine is through with it, or was told to be."""
    loss: Loss | None = "abort"
    """What it counts as unless it is done; None: the engine never took it."""

    def record_end(self, end: End | None) -> None:
        """The engine's last word, if this is one, before anything is done about it."""
        if end is not None:
            self.has_left_engine = True
            if not isinstance(end, Finished):
                self.loss = "error" if isinstance(end, Failed) else None

    @property
    def arrival(self) -> float:
        """When the client's request was read, monotonic seconds."""
        arrival = self.request.arrival
        return self.submitted_at if arrival is None else arrival

    @property
    def output_s(self) -> float:
        """From its first token to its last one."""
        return self.last_token_at - self.submitted_at - (self.first_token_s or 0.0)

    def continued(self) -> GenerateRequest:
        """The request as it stands: what was sampled ends the prompt, and counts as output."""
        output = bytes(self.output_ids)
        return replace(
            self.request,
            prompt_token_ids=self.request.prompt_token_ids + output,
            num_output_prefix=num_ids(output),
        )

    def timing(self, end: Finished | None) -> Timing:
        """Where its time went until now.

        Args:
            end: the engine's last word; None if it was ended here.
        """
        total_s = time.monotonic() - self.submitted_at
        return Timing(
            queue_s=self.queue_s,
            prefill_s=None if end is None else end.timings.prefill_s,
            decode_s=None if end is None else end.timings.decode_s,
            first_token_s=total_s if self.first_token_s is None else self.first_token_s,
            total_s=total_s,
        )
