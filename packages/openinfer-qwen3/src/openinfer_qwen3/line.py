"""How an engine serves Qwen3: what it claims, what it decides, how it starts.

No torch before `launch`: a front process asks `probe` and `plan`.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from openinfer_engine import (
    Claim,
    EngineOptions,
    Executor,
    LaunchSpec,
    OptionRejected,
    Refusal,
    ServePlan,
    heavy_imports,
    read_config,
)
from openinfer_qwen3.config import Qwen3Config
from openinfer_qwen3.errors import UnsupportedConfig

if TYPE_CHECKING:
    from openinfer_qwen3.model import Qwen3Model
    from openinfer_runtime import BuildOptions

# Slots and tokens of a step, by device. A CPU step is bound by arithmetic, so its prompts go in
# small chunks to keep the running sequences moving; a GPU needs thousands of tokens to be busy.
_LIMITS = {"cpu": (64, 512), "cuda": (256, 8192)}


class Qwen3Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options this line owns."""

    attention_backend: Literal["auto", "triton", "native", "cpu", "torch", "reference"] = "auto"
    """Which implementation of paged attention runs; one that cannot refuses to start."""


class Qwen3Line:
    """`openinfer_engine.ModelLine` for Qwen3 dense models."""

    name = "qwen3"
    options: type[msgspec.Struct] = Qwen3Options

    def probe(self, config: Mapping[str, Any], /) -> Claim | Refusal:
        """Claims what `Qwen3Config` reads; refuses the rest by name of the field."""
        try:
            Qwen3Config.from_dict(config)
        except UnsupportedConfig as error:
            return Refusal(str(error))
        return Claim(config["architectures"][0])

    def plan(self, spec: LaunchSpec, /) -> ServePlan:
        """Decides limits, device and dtype; reads config.json and generation_config.json.

        Raises:
            CheckpointNotFound: there is no config.json.
            OptionRejected: an option is not honoured, or not with this model.
        """
        raw = read_config(spec.model_path)
        config = _read(raw)
        options = spec.engine
        _line_options(spec)
        _check(options)
        _check_quantization(options, config)
        max_num_seqs, max_num_batched_tokens = _step_limits(options)
        return ServePlan(
            device=options.device,
            dtype=_dtype(options, config),
            max_model_len=_max_model_len(options, config),
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            vocab_size=config.vocab_size,
            eos_token_ids=_eos_token_ids(spec.model_path, raw),
        )

    def launch(self, spec: LaunchSpec, /) -> Executor:
        """Loads the weights; returns when the executor can step.

        Raises:
            OptionRejected: as `plan` does.
            DeviceError: what is missing on this machine, and what to do.
        """
        plan = self.plan(spec)
        config = _read(read_config(spec.model_path))
        backend = _line_options(spec).attention_backend

        with heavy_imports():
            from openinfer_kernels import BackendUnavailable
            from openinfer_qwen3.model import Qwen3Model
            from openinfer_runtime import launch_torch

        def build(options: "BuildOptions") -> "Qwen3Model":
            # All layers of Qwen3 are of one kind.
            num_layers = 1 if options.layers == "one_of_each" else config.num_layers
            try:
                return Qwen3Model(
                    replace(config, num_layers=num_layers),
                    device=options.device,
                    dtype=options.dtype,
                    block_size=options.block_size,
                    max_model_len=options.max_model_len,
                    attention_backend=backend,
                    quantization=options.quantization,
                )
            except BackendUnavailable as error:
                if error.backend != backend:
                    raise
                reason = f"{backend} cannot run here: {error.reason}; leave it out"
                raise OptionRejected("attention_backend", reason) from error

        return launch_torch(spec, plan, build)


LINE = Qwen3Line()


def _read(raw: Mapping[str, Any]) -> Qwen3Config:
    try:
        return Qwen3Config.from_dict(raw)
    except UnsupportedConfig as error:
        raise OptionRejected("model", str(error)) from error


def _line_options(spec: LaunchSpec) -> Qwen3Options:
    try:
        return msgspec.convert(spec.line_options, Qwen3Options)
    except msgspec.ValidationError as error:
        name = next((n for n in spec.line_options if n in str(error)), "line_options")
        raise OptionRejected(name, str(error)) from error


def _check(options: EngineOptions) -> None:
    counts = (
        "max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size",
        "kv_cache_bytes", "num_threads", "tensor_parallel_size",
    )  # fmt: skip
    for name in counts:
        value = getattr(options, name)
        if value is not None and value < 1:
            raise OptionRejected(name, f"must be at least 1, not {value}")
    if options.tensor_parallel_size != 1:
        raise OptionRejected(
            "tensor_parallel_size",
            f"{options.tensor_parallel_size} is not available yet; start one server per GPU, "
            "each with its own CUDA_VISIBLE_DEVICES and port",
        )
    share = options.gpu_memory_utilization
    if not 0.0 < share <= 1.0:
        raise OptionRejected("gpu_memory_utilization", "must be in (0, 1]")
    if share != EngineOptions().gpu_memory_utilization and _device(options) == "cpu":
        raise OptionRejected(
            "gpu_memory_utilization",
            "has no effect on a CPU; leave it out, --kv-cache-memory-bytes sizes the cache there",
        )


def _check_quantization(options: EngineOptions, config: Qwen3Config) -> None:
    quantization, dtype = options.quantization, _dtype(options, config)
    if quantization is not None and _device(options) == "cuda":
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


def _step_limits(options: EngineOptions) -> tuple[int, int]:
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


def _device(options: EngineOptions) -> str:
    if options.device != "auto":
        return options.device
    return "cuda" if _has_nvidia_driver() else "cpu"


def _has_nvidia_driver() -> bool:
    return Path("/dev/nvidiactl").exists()


def _dtype(options: EngineOptions, config: Qwen3Config) -> str:
    if options.dtype != "auto":
        return options.dtype
    # transformers writes no dtype for float32 checkpoints of old.
    return config.dtype or "float32"


def _max_model_len(options: EngineOptions, config: Qwen3Config) -> int:
    longest = config.max_position
    if options.max_model_len is None:
        return longest
    if options.max_model_len > longest:
        raise OptionRejected(
            "max_model_len",
            f"{options.max_model_len} is more than the model's max_position_embeddings = {longest}",
        )
    return options.max_model_len


def _eos_token_ids(model_path: str, raw: Mapping[str, Any]) -> tuple[int, ...]:
    """The ids that end a sequence: those of config.json and generation_config.json together."""
    try:
        text = (Path(model_path) / "generation_config.json").read_text(encoding="utf-8")
        generation = json.loads(text)
    except FileNotFoundError:
        generation = {}
    except ValueError as error:
        raise OptionRejected("model", f"generation_config.json is not JSON: {error}") from error
    if not isinstance(generation, dict):
        raise OptionRejected("model", "generation_config.json is not a JSON object")
    ids: set[int] = set()
    for name, source in (("config.json", raw), ("generation_config.json", generation)):
        value = source.get("eos_token_id")
        given = value if isinstance(value, list) else [] if value is None else [value]
        if not all(type(i) is int for i in given):
            raise OptionRejected("model", f"eos_token_id in {name} must be ids, not {value!r}")
        ids.update(i for i in given if i >= 0)  # some write -1 for none
    return tuple(sorted(ids))
