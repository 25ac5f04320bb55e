"""How a model package plugs in: one `ModelLine` under the entry point group `openinfer.models`."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

from msgspec import Struct

from openinfer_engine._executor import Executor
from openinfer_engine.errors import CheckpointNotFound
from openinfer_grammar import BackendName
from openinfer_kv_cache import KVEventsConfig

MIN_TRACE_BYTES = 1 << 20


class EngineOptions(Struct, frozen=True, kw_only=True):
    """What every engine is started with. None means: decide from the model and the machine."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    block_size: int = 16
    kv_cache_bytes: int | None = None
    gpu_memory_utilization: float = 0.9
    enable_prefix_caching: bool = True
    eviction_policy: Literal["lru", "lfu", "priority"] = "lru"
    scheduling_policy: str = "fcfs"
    """Name of an installed policy, or `module:Class`."""
    admission: Literal["optimistic", "lifetime"] = "optimistic"
    long_prefill_token_threshold: int | None = None
    """Tokens of one prefill chunk at most; None: what the step has left."""
    max_num_partial_prefills: int | None = None
    """Sequences whose prompt is partly forwarded at the same time at most; None: no limit."""
    target_itl_ms: float | None = None
    """What 99 % of the gaps between tokens of a sequence should keep; None: no cap on prefill."""
    max_queued_requests: int = 4096
    max_queued_tokens: int = 16_000_000
    tensor_parallel_size: int = 1
    enforce_eager: bool = False
    """Launch every operation of every step, instead of replaying recorded steps on a GPU."""
    num_threads: int | None = None
    """CPU threads of one forward pass; None: physical cores, one for a very small model."""
    seed: int | None = None
    """Makes the engine's own seeds reproducible."""
    quantization: Literal["int8", "int4"] | None = None
    """Bits of the products' weights, quantized while they are loaded; None keeps the dtype."""
    load_format: Literal["auto", "safetensors", "dummy"] = "auto"
    """dummy: random weights of the checkpoint's shapes."""
    kv_events_config: KVEventsConfig | None = None
    trace_file: str | None = None
    """Where a trace is written from the start."""
    trace_kernels: bool = False
    """Whether it has the single kernels of its first steps."""
    trace_max_bytes: int = 256 << 20
    """What a trace grows to at most; later events are dropped."""
    trace_dir: str | None = None
    """Folder of traces that are started later; None: such need a path."""
    structured_outputs_backend: BackendName = "llguidance"
    """What holds outputs to grammars; xgrammar is an extra of openinfer-grammar."""

    def __post_init__(self) -> None:
        for name in ("long_prefill_token_threshold", "max_num_partial_prefills"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}; leave it out for none")
        target_ms = self.target_itl_ms
        if target_ms is not None and not 0 < target_ms < math.inf:
            raise ValueError(f"target_itl_ms must be a positive number, not {target_ms}")
        if self.trace_kernels and self.trace_file is None:
            raise ValueError("trace_kernels has no effect without trace_file; name one")
        if self.trace_max_bytes < MIN_TRACE_BYTES:
            raise ValueError(f"trace_max_bytes must be at least {MIN_TRACE_BYTES}")
        if self.is_publishing_kv_events and not self.enable_prefix_caching:
            raise ValueError(
                "kv_events_config: without prefix caching no block is ever stored; leave out "
                "either enable_kv_cache_events or --no-enable-prefix-caching"
            )

    @property
    def is_publishing_kv_events(self) -> bool:
        """Whether anybody is told what becomes of cached blocks."""
        return self.kv_events_config is not None and self.kv_events_config.is_publishing


class LaunchSpec(Struct, frozen=True, kw_only=True):
    """Everything an engine process needs to know; crosses the process boundary as msgpack."""

    model_path: str
    """A local checkpoint folder."""
    model_line: str
    """Name of the installed line that serves it, or of the engine when there is no line."""
    engine: EngineOptions = EngineOptions()
    line_options: dict[str, Any] = {}
    """Values of the line's own options, by field name."""


class Claim(Struct, frozen=True):
    """The line serves this checkpoint exactly."""

    architecture: str
    rank: Literal["exact", "fallback"] = "exact"
    """A fallback serves the checkpoint only where no line of rank exact claims it."""


class Refusal(Struct, frozen=True):
    """The line does not serve this checkpoint, and why, by name of the field."""

    reason: str


class ServePlan(Struct, frozen=True, kw_only=True):
    """What can be known before anything is loaded."""

    device: str
    dtype: str
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]


class ModelLine(Protocol):
    """One family of models. `probe` and `plan` cost milliseconds and import no torch."""

    name: str
    options: type[Struct]
    """A frozen struct with a default for every field: the options this line owns."""

    def probe(self, config: Mapping[str, Any], /) -> Claim | Refusal:
        """Looks at a checkpoint's config.json."""

    def plan(self, spec: LaunchSpec, /) -> ServePlan:
        """Decides what follows from the options alone.

        Raises:
            OptionRejected: an option is set that this line does not honour, or cannot with this
                model; nothing is silently dropped.
        """

    def launch(self, spec: LaunchSpec, /) -> Executor:
        """Loads the weights and returns the executor, ready to step.

        Raises:
            OpenInferError: with a sentence that says what to do.
        """


def read_config(model_path: str | Path) -> dict[str, Any]:
    """A checkpoint folder's config.json.

    Raises:
        CheckpointNotFound: the folder or the file is missing or unreadable.
    """
    path = Path(model_path) / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointNotFound(str(model_path), error.strerror or "unreadable") from error
    except ValueError as error:
        raise CheckpointNotFound(str(model_path), f"config.json is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise CheckpointNotFound(str(model_path), "config.json is not a JSON object")
    return config
