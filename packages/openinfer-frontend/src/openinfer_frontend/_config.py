"""The operator's choices about the front end."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from openinfer_contract import Grammar

GrammarCheck = Callable[[Grammar], str | None]
"""Returns why a grammar cannot be honoured, or None if it can. Called from any thread."""
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
        ValueError: there is no model name, or a limit is not positive.
    """

    served_model_names: tuple[str, ...]
    """Model names accepted in requests. A response repeats the name that was asked for, else the
    first."""
    version: str
    """The version that `/version` returns."""
    api_keys: tuple[str, ...] = ()
    """API keys for the users' routes; any of them is accepted. Empty: these routes need no key."""
    admin_api_key: str | None = None
    """Key for the operator's routes; it is accepted on all other routes too. None: an API key opens
    the operator's routes."""
    allowed_origins: tuple[str, ...] = ()
    """Origins whose web pages may read responses; `*` for all."""
    generation_config: Literal["auto", "vllm"] = "auto"
    """auto: the checkpoint's sampling defaults. vllm: temperature 1 and no truncation."""
    reasoning_field: ReasoningField = "both"
    """The name of the reasoning field in chat completions."""
    trust_request_chat_template: bool = False
    """Whether requests may bring their own chat templates, which are programs."""
    max_body_bytes: int = 16 << 20
    """Maximum bytes of a request body; a longer one is a 413. The default holds two million token
    ids at 8 bytes each: eight prompts of 262,144 tokens."""
    max_pending_body_bytes: int = 1 << 30
    """Maximum total bytes of the bodies being received or parsed; a request beyond it is a 503."""
    max_in_flight: int = 8192
    """Maximum number of running requests; a request beyond it is a 503."""
    max_sequences: int = 1024
    """Maximum number of choices (prompts times `n`) of one HTTP request."""
    request_timeout_s: float | None = None
    """Seconds from its arrival after which a request ends with a 408. None: no limit. A request's
    own `deadline_ms` also holds if it is earlier."""
    body_timeout_s: float = 60.0
    """Seconds that a body may take to arrive; a slower one is a 408."""
    stall_timeout_s: float = 30.0
    """Disconnect a client that has read nothing for this many seconds while the buffers were full.
    """
    control_timeout_s: float = 60.0
    """Maximum seconds for a command, such as a cache reset."""
    resume_timeout_s: float = 60.0
    """Seconds that responses wait for a new engine if theirs has died. 0: they fail at once."""
    retry_after_s: float = 1.0
    """The `retry-after` of a 503 while there is no engine, in seconds."""
    poll_s: float = 0.0
    """Seconds for which the event loop polls instead of sleeping, after each request is submitted
    and after each request ends. Waking a sleeping core is slow; polling uses a whole core."""
    num_text_threads: int = 2
    """Threads that render and encode long prompts."""
    max_inline_bytes: int = 1024
    """Requests of up to this many bytes are rendered and encoded on the event loop, which takes at
    most a millisecond."""
    metrics_prefix: str = "vllm:"
    """Prefix of metric names at `/metrics`. The default matches dashboards made for vLLM."""
    check_grammar: GrammarCheck | None = None
    """Checks a grammar before the prompt is tokenised; None leaves the check to the engine."""

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
        """The first model name, for responses to requests that name no model."""
        return self.served_model_names[0]
