"""Engine `sim` of `openinfer serve --engine sim`: the front end under load, in real time.

Tokenizer and ids are those of the served checkpoint. Sizes and rates are those of the modelled
model and device. Output tokens are random.
"""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from openinfer_engine import (
    EngineOptions,
    Executor,
    LaunchSpec,
    OptionRejected,
    ServePlan,
    read_config,
)
from openinfer_sim._setup import Setup
from openinfer_sim.device._clock import RealClock
from openinfer_sim.device._content import Content
from openinfer_sim.device._executor import ModelledExecutor
from openinfer_sim.errors import UnknownFigures

_MAX_NUM_SEQS = 256
_MAX_NUM_BATCHED_TOKENS = 8192
_HONOURED = frozenset(
    [
        # honoured by `Setup`
        "max_model_len",
        "max_num_seqs",
        "max_num_batched_tokens",
        "block_size",
        "kv_cache_bytes",
        "gpu_memory_utilization",
        "tensor_parallel_size",
        "seed",
        # honoured by the engine loop, scheduler and cache
        "enable_prefix_caching",
        "scheduling_policy",
        "eviction_policy",
        "admission",
        "long_prefill_token_threshold",
        "max_num_partial_prefills",
        "target_itl_ms",
        "max_queued_requests",
        "max_queued_tokens",
        "kv_events_config",
    ]
)
"""Engine options that have an effect here. Any other option is refused."""
_REASONS = {
    "device": "no device is used; --sim-device selects the modelled one",
    "dtype": "the figures are those of the published precision",
    "num_threads": "nothing is computed",
    "enforce_eager": "no graph is captured",
    "load_format": "nothing is loaded",
}


class SimOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of the engine `sim`."""

    sim_model: str = "qwen3-4b"
    """Model whose sizes are used."""
    sim_device: str = "h200"
    """Device whose rates are used."""
    sim_output_tokens: int | None = None
    """Mean number of output tokens until an EOS id. None: outputs end only by the request's limits.
    """


class SimEngine:
    """Engine `sim` for the application. Entry point of `openinfer.engines`."""

    name = "sim"
    options: type[msgspec.Struct] = SimOptions
    factory = "openinfer_sim:launch"

    def plan(self, spec: LaunchSpec, /) -> ServePlan:
        """Decides limits and reads the checkpoint's vocabulary and EOS ids.

        Raises:
            OptionRejected: An option has no effect here, or its value is invalid.
            SimError: Options contradict each other.
        """
        setup = _setup(spec)
        vocab_size, eos_token_ids = _ids(spec.model_path)
        info = setup.executor_info(vocab_size=vocab_size, eos_token_ids=eos_token_ids)
        return ServePlan(
            device=info.device,
            dtype=info.dtype,
            max_model_len=info.max_model_len,
            max_num_seqs=info.max_num_seqs,
            max_num_batched_tokens=info.max_num_batched_tokens,
            vocab_size=vocab_size,
            eos_token_ids=eos_token_ids,
        )


ENGINE = SimEngine()


def launch(spec: LaunchSpec) -> Executor:
    """Makes an executor on the real clock. An `openinfer_engine.ExecutorFactory`.

    Raises:
        OptionRejected: As `SimEngine.plan`.
    """
    setup, options = _setup(spec), _options(spec)
    vocab_size, eos_token_ids = _ids(spec.model_path)
    content = Content(
        vocab_size,
        eos_token_ids=eos_token_ids,
        allowed=_text_ids(spec.model_path, vocab_size),
        mean_output_tokens=options.sim_output_tokens,
        seed=spec.engine.seed or 0,
    )
    info = setup.executor_info(vocab_size=vocab_size, eos_token_ids=eos_token_ids)
    return ModelledExecutor(info, setup.cost_model(), content, RealClock())


def _options(spec: LaunchSpec) -> SimOptions:
    try:
        options = msgspec.convert(spec.line_options, SimOptions)
    except msgspec.ValidationError as error:
        name = next((n for n in spec.line_options if n in str(error)), "line_options")
        raise OptionRejected(name, str(error)) from error
    if options.sim_output_tokens is not None and options.sim_output_tokens < 1:
        raise OptionRejected(
            "sim_output_tokens", f"must be at least 1, not {options.sim_output_tokens}"
        )
    return options


def _setup(spec: LaunchSpec) -> Setup:
    options, engine = _options(spec), spec.engine
    _refuse_foreign(engine)
    num_seqs = engine.max_num_seqs
    if num_seqs is None:
        num_seqs = min(_MAX_NUM_SEQS, engine.max_num_batched_tokens or _MAX_NUM_SEQS)
    try:
        return Setup(
            model=options.sim_model,
            device=options.sim_device,
            max_model_len=engine.max_model_len,
            max_num_seqs=num_seqs,
            max_num_batched_tokens=(
                engine.max_num_batched_tokens or max(num_seqs, _MAX_NUM_BATCHED_TOKENS)
            ),
            block_size=engine.block_size,
            kv_cache_bytes=engine.kv_cache_bytes,
            gpu_memory_utilization=engine.gpu_memory_utilization,
            tensor_parallel_size=engine.tensor_parallel_size,
        )
    except UnknownFigures as error:
        name = "sim_model" if error.name == options.sim_model else "sim_device"
        raise OptionRejected(name, str(error)) from error


def _refuse_foreign(engine: EngineOptions) -> None:
    """Refuses engine options that have no effect on a modelled engine."""
    for field in msgspec.structs.fields(EngineOptions):
        name = field.name
        if name not in _HONOURED and getattr(engine, name) != field.default:
            reason = _REASONS.get(name, "it is not modelled")
            raise OptionRejected(name, f"has no effect on --engine sim: {reason}; leave it out")


def _ids(model_path: str) -> tuple[int, tuple[int, ...]]:
    """Returns vocabulary size and EOS ids of the served checkpoint."""
    config = read_config(model_path)
    inner = config.get("text_config")
    merged = {**(inner if isinstance(inner, dict) else {}), **config}
    vocab_size = merged.get("vocab_size")
    if not isinstance(vocab_size, int) or vocab_size < 1:
        raise OptionRejected("model", f"vocab_size in config.json is {vocab_size!r}")
    eos: set[int] = set()
    for source in (merged, _read_json(Path(model_path) / "generation_config.json")):
        value = source.get("eos_token_id")
        eos.update(value if isinstance(value, list) else [] if value is None else [value])
    return vocab_size, tuple(sorted(i for i in eos if 0 <= i < vocab_size))


def _text_ids(model_path: str, vocab_size: int) -> npt.NDArray[np.uint32] | None:
    """Returns the ids of text tokens, without added tokens. None if the tokenizer lists none."""
    tokenizer = _read_json(Path(model_path) / "tokenizer.json")
    vocab = tokenizer.get("model", {}).get("vocab", {})
    ids: Collection[int] = vocab.values() if isinstance(vocab, dict) else range(len(vocab))
    added = {token["id"] for token in tokenizer.get("added_tokens", [])}
    kept = sorted(i for i in ids if i < vocab_size and i not in added)
    return np.array(kept, np.uint32) if kept else None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise OptionRejected("model", f"{path.name} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise OptionRejected("model", f"{path.name} is not a JSON object")
    return content
