"""What an operator decides about the front end."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from openinfer_contract import Grammar

GrammarCheck = Callable[[Grammar], str | None]
"""Says why a grammar cannot be honoured, None if it can; called from any thread."""


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
    generation_config: Literal["auto", "vllm"] = "auto"
    """auto: the checkpoint's sampling defaults. vllm: temperature 1 and no truncation."""
    max_body_bytes: int = 64 << 20
    max_sequences: int = 1024
    """Prompts times samples of one HTTP request."""
    body_timeout_s: float = 60.0
    """A request whose body takes longer to arrive is given up."""
    stall_timeout_s: float = 30.0
    """A client that lets a response block for so long counts as gone."""
    control_timeout_s: float = 60.0
    """How long a command (cache reset, exact load) may take."""
    retry_after_s: float = 1.0
    """What a client is told to wait while the engine is away."""
    num_text_threads: int = 2
    """Threads that render and encode long prompts."""
    max_inline_bytes: int = 1024
    """Requests up to this size are rendered and encoded on the event loop, in a millisecond."""
    check_grammar: GrammarCheck | None = None
    """What is asked before a prompt is tokenised; None leaves it to the engine."""

    def __post_init__(self) -> None:
        if not self.served_model_names or not all(self.served_model_names):
            raise ValueError("served_model_names must name at least one model")
        for name in ("max_body_bytes", "max_sequences", "num_text_threads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        for name in ("body_timeout_s", "stall_timeout_s", "control_timeout_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive")

    @property
    def model_name(self) -> str:
        """The name that responses carry."""
        return self.served_model_names[0]
