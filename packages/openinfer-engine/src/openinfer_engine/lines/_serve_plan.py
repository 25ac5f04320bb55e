"""The plan of a model line: what follows from the options and a few facts about the model.

These are rules of OpenInfer, the same for every model. No torch is needed.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from openinfer_engine.errors import OptionRejected
from openinfer_engine.flags._engine_options import EngineOptions
from openinfer_engine.lines._model_line import LaunchSpec, ServePlan

# Slots and tokens of a step, by device. A CPU step is bound by arithmetic, so prompts go in small
# chunks to keep the running sequences moving. A GPU needs thousands of tokens to be busy.
_LIMITS = {"cpu": (64, 512), "cuda": (256, 8192)}
_COUNTS = (
    "max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size",
    "kv_cache_bytes", "num_threads", "tensor_parallel_size",
)  # fmt: skip


class ModelFacts(Protocol):
    """The facts about a model that a plan depends on; a line's configuration has them."""

    @property
    def vocab_size(self) -> int:
        """Size of the vocabulary, which is the number of rows of the embedding."""

    @property
    def max_position(self) -> int:
        """Longest context of the model, in tokens."""

    @property
    def dtype(self) -> str | None:
        """Dtype of the stored weights, None if the checkpoint does not say it."""


def serve_plan(spec: LaunchSpec, facts: ModelFacts, config: Mapping[str, Any]) -> ServePlan:
    """Returns the plan for a checkpoint; reads its generation_config.json.

    Args:
        spec: The launch request with the engine's options.
        facts: Vocabulary, context length and dtype of the model.
        config: The checkpoint's config.json.

    Raises:
        OptionRejected: An option is out of range, or cannot be honoured with this model.
    """
    options = spec.engine
    dtype = options.dtype
    if dtype == "auto":
        # transformers wrote no dtype into older checkpoints of float32.
        dtype = facts.dtype or "float32"  # type: ignore[assignment]
    _check_ranges(options)
    _check_device(options, dtype)
    max_num_seqs, max_num_batched_tokens = _step_limits(options)
    return ServePlan(
        device=options.device,
        dtype=dtype,
        max_model_len=_max_model_len(options, facts.max_position),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        vocab_size=facts.vocab_size,
        eos_token_ids=_eos_token_ids(spec.model_path, config),
    )


def _check_ranges(options: EngineOptions) -> None:
    for name in _COUNTS:
        value = getattr(options, name)
        if value is not None and value < 1:
            raise OptionRejected(name, f"must be at least 1, not {value}")
    if not 0.0 < options.gpu_memory_utilization <= 1.0:
        raise OptionRejected("gpu_memory_utilization", "must be in (0, 1]")
    if options.tensor_parallel_size != 1:
        raise OptionRejected(
            "tensor_parallel_size",
            f"{options.tensor_parallel_size} is not available yet; start one server per GPU, "
            "each with its own CUDA_VISIBLE_DEVICES and port",
        )


def _check_device(options: EngineOptions, dtype: str) -> None:
    device, quantization = _device(options), options.quantization
    is_share_set = options.gpu_memory_utilization != EngineOptions().gpu_memory_utilization
    if is_share_set and device == "cpu":
        raise OptionRejected(
            "gpu_memory_utilization",
            "has no effect on a CPU; leave it out, --kv-cache-memory-bytes sizes the cache there",
        )
    if quantization is not None and device == "cuda":
        raise OptionRejected(
            "quantization",
            f"{quantization} is not yet on CUDA; leave out --quantization, or take --device cpu",
        )
    if quantization == "int8" and dtype != "bfloat16":
        raise OptionRejected(
            "quantization",
            f"int8 computes in bfloat16, and the dtype is {dtype}; take --dtype bfloat16, or "
            "leave out --quantization",
        )


def _device(options: EngineOptions) -> str:
    if options.device != "auto":
        return options.device
    return "cuda" if _has_nvidia_driver() else "cpu"


def _has_nvidia_driver() -> bool:
    return Path("/dev/nvidiactl").exists()


def _step_limits(options: EngineOptions) -> tuple[int, int]:
    """Returns `max_num_seqs` and `max_num_batched_tokens`."""
    num_seqs, num_tokens = _LIMITS[_device(options)]
    max_num_seqs = options.max_num_seqs
    if max_num_seqs is None:
        max_num_seqs = min(num_seqs, options.max_num_batched_tokens or num_seqs)
    max_num_batched_tokens = options.max_num_batched_tokens or max(num_tokens, max_num_seqs)
    if max_num_batched_tokens < max_num_seqs:
        raise OptionRejected(
            "max_num_batched_tokens",
            f"{max_num_batched_tokens} is below max_num_seqs = {max_num_seqs}: every running "
            "sequence takes a token of each step",
        )
    return max_num_seqs, max_num_batched_tokens


def _max_model_len(options: EngineOptions, longest: int) -> int:
    wanted = options.max_model_len
    if wanted is not None and wanted > longest:
        raise OptionRejected(
            "max_model_len",
            f"{wanted} is more than the model's max_position_embeddings = {longest}",
        )
    return longest if wanted is None else wanted


def _eos_token_ids(model_path: str, config: Mapping[str, Any]) -> tuple[int, ...]:
    """Returns the ids that end a sequence: those of both configuration files together."""
    ids: set[int] = set()
    files = {"config.json": config, "generation_config.json": _generation_config(model_path)}
    for name, fields in files.items():
        value = fields.get("eos_token_id")
        listed = value if isinstance(value, list) else [] if value is None else [value]
        if not all(type(i) is int for i in listed):
            raise OptionRejected("model", f"eos_token_id in {name} must be ids, not {value!r}")
        ids.update(i for i in listed if i >= 0)  # some checkpoints write -1 for none
    return tuple(sorted(ids))


def _generation_config(model_path: str) -> Mapping[str, Any]:
    name = "generation_config.json"
    try:
        fields = json.loads((Path(model_path) / name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise OptionRejected("model", f"{name} is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise OptionRejected("model", f"{name} is not a JSON object")
    return fields
