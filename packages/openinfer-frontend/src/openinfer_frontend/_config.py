"""What an operator decides about the front end."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from openinfer_contract import Grammar

GrammarCheck = Callable[[Grammar], str | None]
"""Says why a grammar cannot be honoured, None if it can; called from any thread."""
ReasoningField = Literal["both", "reasoning", "reasoning_content"]


_METRICS_PREFIX = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)?")
_COUNTS = (
    *("max_body_bytes", "max_pending_body_bytes", "max_in_flight", "max_sequences"),
    "num_text_threads",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontendConfig:
    """Settings of one front process.

    Raises:
        ValueError: if there is no model name, or a bound is not positive.
    """

    served_model_names: tuple[str, ...]
    """Names that requests may use; the first one is what responses carry."""
    version: str
    """What `/version` says."""
    api_keys: tuple[str, ...] = ()
    """Any of them opens the routes of users; none: they are open to everybody."""
    admin_api_key: str | None = None
    """Opens the operator's routes, and all others; None: an API key does."""
    allowed_origins: tuple[str, ...] = ()
    """Origins whose pages may read responses; `*` for all."""
    generation_config: Literal["auto", "vllm"] = "auto"
    """auto: the checkpoint's sampling defaults. vllm: temperature 1 and no truncation."""
    reasoning_field: ReasoningField = "both"
    """What reasoning is called in chat completions."""
    trust_request_chat_template: bool = False
    """Whether requests may bring chat templates, which are programs."""
    max_body_bytes: int = 16 << 20
    """Longest request body; a longer one is a 413. The default holds two million token ids at
    8 bytes each: eight prompts of 262,144 tokens."""
    max_pending_body_bytes: int = 1 << 30
    """Bodies that are being received or read, together; beyond it 503."""
    max_in_flight: int = 8192
    """Requests being generated at once; beyond it 503."""
    max_sequences: int = 1024
    """Prompts times samples of one HTTP request."""
    request_timeout_s: float | None = None
    """Requests that take longer, from their arrival on, are given up; None: only by their own
    `deadline_ms`, which also counts where it is less."""
    body_timeout_s: float = 60.0
    """A request whose body takes longer to arrive is given up."""
    stall_timeout_s: float = 30.0
    """A client that lets a response block for so long, the buffers between full, counts as gone."""
    control_timeout_s: float = 60.0
    """How long a command (cache reset, exact load) may take."""
    resume_timeout_s: float = 60.0
    """How long answers whose engine died wait for another one that goes on with them; 0: they fail
    at once."""
    retry_after_s: float = 1.0
    """What a client is told to wait while the engine is away."""
    poll_s: float = 0.0
    """For so long after a request has gone to the engine, and after one has ended, the event loop
    polls instead of sleeping: a core that sleeps is slow to wake. It takes a core meanwhile."""
    num_text_threads: int = 2
    """Threads that render and encode long prompts."""
    max_inline_bytes: int = 1024
    """Requests up to this size are rendered and encoded on the event loop, in a millisecond."""
    metrics_prefix: str = "vllm:"
    """Of the names at `/metrics`, so that dashboards made for others find them."""
    check_grammar: GrammarCheck | None = None
    """What is asked before a prompt is tokenised; None leaves it to the engine."""

    def __post_init__(self) -> None:
        if not self.served_model_names or not all(self.served_model_names):
            raise ValueError("served_model_names must name at least one model")
        if not all(self.api_keys) or self.admin_api_key == "":
            raise ValueError("api_keys and admin_api_key must not be empty")
        if not all(key.isascii() for key in (*self.api_keys, self.admin_api_key or "")):
            raise ValueError("api_keys and admin_api_key must be ASCII")
        if self.reasoning_field not in get_args(ReasoningField):
            raise ValueError(
                f"reasoning_field must be one of {', '.join(get_args(ReasoningField))}"
            )
        for name in ("resume_timeout_s", "poll_s"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative")
        if not _METRICS_PREFIX.fullmatch(self.metrics_prefix):
            raise ValueError(
                "metrics_prefix must be letters, digits, _ and :, and not begin with a digit"
            )
        for name in _COUNTS:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        for name in ("body_timeout_s", "stall_timeout_s", "control_timeout_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive")
        if self.request_timeout_s is not None and not 0 < self.request_timeout_s < math.inf:
            raise ValueError("request_timeout_s must be a positive number of seconds")

    @property
    def model_name(self) -> str:
        """The name that responses carry."""
        return self.served_model_names[0]
