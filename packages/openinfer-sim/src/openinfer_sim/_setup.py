"""Setup of a simulated engine: model, device and limits."""

import math
from dataclasses import dataclass, fields
from fractions import Fraction
from functools import cache
from typing import Any

import msgspec

from openinfer_engine import EngineOptions, ExecutorInfo
from openinfer_kv_cache import CacheGroup, SlabLayout, plan_slabs
from openinfer_scheduler import SchedulerConfig, max_unsettled_tokens
from openinfer_sim.device._cost_model import CostModel
from openinfer_sim.device._executor import ABILITIES, HONOURED
from openinfer_sim.device._figures import (
    DeviceFigures,
    ModelFigures,
    find_device,
    find_model,
    load_figures,
)
from openinfer_sim.errors import SimError

_WORKSPACE_BYTES = 3 << 30
"""Device memory for activations, CUDA graphs and libraries (3 GiB)."""
_NUM_DEVICES = (1, 2, 4, 8)
"""Valid tensor parallel sizes. All devices of a replica are in one host, connected by one link."""
_DEPTH = 2
_UNBOUNDED = 1 << 60
_MAX_BLOCKS = 1 << 31
_COUNTS = (
    "max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size", "kv_cache_bytes",
)  # fmt: skip
_SWITCHES = (
    "eviction_policy", "admission", "long_prefill_token_threshold", "max_num_partial_prefills",
    "target_itl_ms", "tensor_parallel_size",
)  # fmt: skip
"""Options that a setup passes to the engine unchanged."""
_ALWAYS_SHOWN = ("max_num_seqs",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Model, devices, limits and scheduler options of one engine.

    `tensor_parallel_size` devices of one host share the model; memory figures are for each of them.
    If `max_model_len` is None, it is the model's length or what the cache can hold, if that is
    less.

    Raises:
        UnknownFigures: The tables have no such model or device.
        SimError: The model does not fit the devices, or a limit is invalid.
    """

    model: str = "qwen3-4b"
    device: str = "h200"
    max_model_len: int | None = None
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    block_size: int = 16
    kv_cache_bytes: int | None = None
    gpu_memory_utilization: float = 0.9
    tensor_parallel_size: int = 1
    eviction_policy: str = "lru"
    admission: str = "optimistic"
    long_prefill_token_threshold: int | None = None
    max_num_partial_prefills: int | None = None
    target_itl_ms: float | None = None

    def __post_init__(self) -> None:
        for name in _COUNTS:
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int) and value >= 1):
                raise SimError(f"{name} must be a whole number of at least 1, not {value!r}")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise SimError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must not be below "
                f"max_num_seqs ({self.max_num_seqs})"
            )
        share = self.gpu_memory_utilization
        if not 0.0 < share <= 1.0:
            raise SimError(f"gpu_memory_utilization must be in (0, 1], not {share}")
        num_devices = self.tensor_parallel_size
        if not isinstance(num_devices, int) or num_devices not in _NUM_DEVICES:
            raise SimError(
                f"tensor_parallel_size must be one of {', '.join(map(str, _NUM_DEVICES))}, not "
                f"{num_devices}"
            )
        if self.block_size > self.model_figures.max_model_len:
            raise SimError(
                f"block_size must be at most {self.model_figures.max_model_len}, the positions of "
                f"{self.model}, not {self.block_size}"
            )
        room = self.num_cache_tokens
        if not room or self._free_bytes(self.tensor_parallel_size) <= 0:
            raise SimError(self._too_large_message())
        if self.num_blocks >= _MAX_BLOCKS:
            raise SimError(
                f"{self._layout.slab_bytes * self.num_blocks / 1e9:.1f} GB of cache are "
                f"{self.num_blocks} blocks, but block ids have 31 bits: lower kv_cache_bytes "
                f"or raise block_size ({self.block_size})"
            )
        if self.max_model_len is not None and self.max_model_len > room:
            raise SimError(f"max_model_len {self.max_model_len} exceeds the cache's {room} tokens")
        self.engine_options()  # raises if the engine would refuse a value

    def _too_large_message(self) -> str:
        num = self.tensor_parallel_size
        if self._free_bytes(num) > 0:
            slabs_per_token, num_beside = self._slab_needs
            num_slabs = num_beside + math.ceil(slabs_per_token * self._tokens_per_slab)
            least = num_slabs * self._layout.slab_bytes
            if self.kv_cache_bytes is not None:
                return (
                    f"kv_cache_bytes {self.kv_cache_bytes} holds no block of {self.model}'s cache: "
                    f"it must be at least {least}"
                )
            return (
                f"block_size {self.block_size} is too large: one sequence of {self.model} would "
                f"take {least / 1e9:.1f} GB of cache, and weights and a workspace leave "
                f"{self._free_bytes(num) / 1e9:.1f} GB"
            )
        where = self.device if num == 1 else f"{num} {self.device}"
        weights = f"its weights take {self.model_figures.resident_bytes / 1e9:.1f} GB"
        text = f"{self.model} leaves no memory for a KV cache on {where}: {weights}"
        enough = next((n for n in _NUM_DEVICES if n > num and self._free_bytes(n) > 0), None)
        if enough is not None:
            return f"{text}; --tensor-parallel-size {enough} is enough"
        return (
            f"{text}; --tensor-parallel-size {_NUM_DEVICES[-1]} is not enough either at "
            f"--gpu-memory-utilization {self.gpu_memory_utilization:g}"
        )

    def named_options(self) -> dict[str, Any]:
        """Returns `max_num_seqs` and the options that differ from their defaults.

        Model and device are not among them.
        """
        return {
            field.name: value
            for field in fields(self)
            if field.name not in ("model", "device")
            and (
                (value := getattr(self, field.name)) != field.default or field.name in _ALWAYS_SHOWN
            )
        }

    @property
    def model_figures(self) -> ModelFigures:
        """Sizes of the model."""
        return find_model(self.model)

    @property
    def device_figures(self) -> DeviceFigures:
        """Rates of the device."""
        return find_device(self.device)

    def cost_model(self) -> CostModel:
        """Returns the durations of steps."""
        return CostModel(
            self.model_figures,
            self.device_figures,
            load_figures().overheads,
            num_devices=self.tensor_parallel_size,
        )

    def _free_bytes(self, num_devices: int) -> float:
        """Returns the bytes that are free on each of `num_devices` devices once weights are loaded.

        The workspace is subtracted too, unless `kv_cache_bytes` is set.
        """
        weights = self.model_figures.of_rank(num_devices).resident_bytes
        memory_bytes = self.device_figures.memory_bytes
        if self.kv_cache_bytes is not None:
            return memory_bytes - weights
        return memory_bytes * self.gpu_memory_utilization - weights - _WORKSPACE_BYTES

    @property
    def num_blocks(self) -> int:
        """Number of blocks of the cache, or of slabs if there are several groups."""
        free: float | None = self.kv_cache_bytes
        if free is None:
            free = self._free_bytes(self.tensor_parallel_size)
        return max(0, int(free // self._layout.slab_bytes))

    @property
    def num_cache_tokens(self) -> int:
        """Tokens of the longest sequence that the cache can hold, with its state or window."""
        slabs_per_token, num_beside = self._slab_needs
        unit = self._tokens_per_slab
        return max(0, int((self.num_blocks - num_beside) / slabs_per_token) // unit) * unit

    @property
    def _tokens_per_slab(self) -> int:
        """Number of positions in a slab of the first group."""
        return self._layout.blocks_per_slab[0] * self._groups[0].tokens_per_block

    @property
    def _slab_needs(self) -> tuple[Fraction, int]:
        """Slabs that one sequence needs per token, and slabs that it needs whatever its length."""
        slabs_per_token, num_beside = Fraction(0), 0
        for index, group in enumerate(self._groups):
            per_slab = self._layout.blocks_per_slab[index]
            if group.kind == "full":
                slabs_per_token += Fraction(1, per_slab * group.tokens_per_block)
            if group.window is not None:
                held = (group.window + self._max_unsettled) // group.tokens_per_block + 2
                num_beside += -(-held // per_slab)
            elif index:
                num_beside += 1  # a recurrent state, or a partly filled last slab
        return slabs_per_token, num_beside

    @property
    def _max_unsettled(self) -> int:
        """Maximum number of positions for which a sequence may hold blocks beyond its window."""
        config = SchedulerConfig(
            max_model_len=self.model_figures.max_model_len,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            depth=_DEPTH,
        )
        return max_unsettled_tokens(config, self._groups)

    @property
    def _groups(self) -> tuple[CacheGroup, ...]:
        """Cache groups of one device."""
        model = self.model_figures.of_rank(self.tensor_parallel_size)
        return model.cache_groups(self.block_size)

    @property
    def _layout(self) -> SlabLayout:
        return _plan_slabs(self._groups)

    def engine_options(
        self, *, policy: str = "fcfs", has_prefix_cache: bool = True, seed: int | None = None
    ) -> EngineOptions:
        """Returns the options of the engine. Its queue is unbounded.

        Args:
            policy: Scheduling policy.
            has_prefix_cache: Whether prefixes are cached.
            seed: Seed of requests that have no seed of their own.
        """
        options = {
            "scheduling_policy": policy,
            "enable_prefix_caching": has_prefix_cache,
            "seed": seed,
            "max_queued_requests": _UNBOUNDED,
            "max_queued_tokens": _UNBOUNDED,
            **{name: getattr(self, name) for name in _SWITCHES},
        }
        try:
            return msgspec.convert(options, EngineOptions)
        except msgspec.ValidationError as error:
            raise SimError(f"setup: {error}") from error

    @property
    def model_len(self) -> int:
        """Upper bound of the prompt and output tokens of one request."""
        if self.max_model_len is not None:
            return self.max_model_len
        return min(self.model_figures.max_model_len, self.num_cache_tokens)

    def executor_info(
        self, *, vocab_size: int | None = None, eos_token_ids: tuple[int, ...] = ()
    ) -> ExecutorInfo:
        """Returns the description of an executor of this setup.

        Args:
            vocab_size: Size of the vocabulary. None: the model's.
            eos_token_ids: Ids that end a sequence.
        """
        model, num = self.model_figures, self.tensor_parallel_size
        return ExecutorInfo(
            device=f"modelled {self.device}" if num == 1 else f"modelled {num} {self.device}",
            dtype="bfloat16",
            vocab_size=vocab_size or model.vocab_size,
            eos_token_ids=eos_token_ids,
            max_model_len=self.model_len,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            depth=_DEPTH,
            cache_groups=self._groups,
            num_blocks=self.num_blocks,
            model_fingerprint=f"sim:{self.model}",
            max_logprobs=0,
            abilities=ABILITIES,
            honoured=HONOURED,
        )


_plan_slabs = cache(plan_slabs)
