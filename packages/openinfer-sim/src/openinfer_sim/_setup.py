"""What is simulated: a model on a device behind one engine's limits."""

from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import msgspec

from openinfer_engine import EngineOptions, ExecutorInfo
from openinfer_kv_cache import SlabLayout, plan_slabs
from openinfer_sim._executor import HONOURED
from openinfer_sim._figures import DeviceFigures, ModelFigures, find_device, find_model
from openinfer_sim.errors import SimError

_WORKSPACE_BYTES = 3 << 30
"""Activations, graphs and libraries beside weights and cache."""
_DEPTH = 2
_UNBOUNDED = 1 << 60
_COUNTS = (
    "max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size", "kv_cache_bytes",
)  # fmt: skip
_SWITCHES = (
    "eviction_policy", "admission", "long_prefill_token_threshold", "max_num_partial_prefills",
    "target_itl_ms",
)  # fmt: skip
"""Options of every engine that a setup has too."""
_SHOWN = ("max_num_seqs",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One engine's model, device, limits and switches; None: from the model and the device.

    A length that is not given is the model's, or what the cache can hold if that is less.

    Raises:
        UnknownFigures: a name the tables do not have.
        SimError: the model does not fit the device, or a limit makes no sense.
    """

    model: str = "qwen3-4b"
    device: str = "h200"
    max_model_len: int | None = None
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    block_size: int = 16
    kv_cache_bytes: int | None = None
    gpu_memory_utilization: float = 0.9
    eviction_policy: str = "lru"
    admission: str = "optimistic"
    long_prefill_token_threshold: int | None = None
    max_num_partial_prefills: int | None = None
    target_itl_ms: float | None = None

    def __post_init__(self) -> None:
        for name in _COUNTS:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SimError(f"{name} must be at least 1, not {value}")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise SimError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must not be below "
                f"max_num_seqs ({self.max_num_seqs})"
            )
        share = self.gpu_memory_utilization
        if not 0.0 < share <= 1.0:
            raise SimError(f"gpu_memory_utilization must be in (0, 1], not {share}")
        room = self.num_cache_tokens
        if not room and self.kv_cache_bytes is not None:
            num_bytes = self._layout.slab_bytes * len(
                self.model_figures.cache_groups(self.block_size)
            )
            raise SimError(
                f"kv_cache_bytes {self.kv_cache_bytes} holds no block of {self.model}'s cache: "
                f"it must be at least {num_bytes}"
            )
        if not room:
            raise SimError(
                f"{self.model} leaves no memory for a KV cache on {self.device}: its weights take "
                f"{self.model_figures.resident_bytes / 1e9:.1f} GB"
            )
        if self.max_model_len is not None and self.max_model_len > room:
            raise SimError(f"max_model_len {self.max_model_len} exceeds the cache's {room} tokens")
        self.engine_options()  # refuses what no engine understands

    def named_options(self) -> dict[str, Any]:
        """How many sequences run at once, and what is not the default; model and device apart."""
        return {
            field.name: value
            for field in fields(self)
            if field.name not in ("model", "device")
            and ((value := getattr(self, field.name)) != field.default or field.name in _SHOWN)
        }

    @property
    def model_figures(self) -> ModelFigures:
        """Sizes of the model."""
        return find_model(self.model)

    @property
    def device_figures(self) -> DeviceFigures:
        """Rates of the device."""
        return find_device(self.device)

    @property
    def num_blocks(self) -> int:
        """Blocks of the cache, or slabs of several groups: what weights and a workspace leave."""
        model, device = self.model_figures, self.device_figures
        if self.kv_cache_bytes is None:
            free = device.memory_bytes * self.gpu_memory_utilization - model.resident_bytes
            free -= _WORKSPACE_BYTES
        else:
            free = self.kv_cache_bytes
        return max(0, int(free // self._layout.slab_bytes))

    @property
    def num_cache_tokens(self) -> int:
        """Positions that the cache holds of one sequence; a hybrid model's state lies beside."""
        groups = self.model_figures.cache_groups(self.block_size)
        num_slabs = self.num_blocks - (len(groups) - 1)
        return max(0, num_slabs) * self._layout.blocks_per_slab[0] * groups[0].tokens_per_block

    @property
    def _layout(self) -> SlabLayout:
        return _plan_slabs(self.model_figures.cache_groups(self.block_size))

    def engine_options(
        self, *, policy: str = "fcfs", has_prefix_cache: bool = True, seed: int | None = None
    ) -> EngineOptions:
        """What the engine is assembled with; its intake refuses nobody for the queue's length.

        Args:
            policy: of the scheduler.
            has_prefix_cache: whether prefixes are kept.
            seed: of requests that bring none.
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
        """Prompt and output tokens of one request at most."""
        if self.max_model_len is not None:
            return self.max_model_len
        return min(self.model_figures.max_model_len, self.num_cache_tokens)

    def executor_info(
        self, *, vocab_size: int | None = None, eos_token_ids: tuple[int, ...] = ()
    ) -> ExecutorInfo:
        """What an executor of this setup says of itself.

        Args:
            vocab_size: of the tokens, where that is not the model's own.
            eos_token_ids: ids that end a sequence.
        """
        model = self.model_figures
        return ExecutorInfo(
            device=f"modelled {self.device}",
            dtype="bfloat16",
            vocab_size=vocab_size or model.vocab_size,
            eos_token_ids=eos_token_ids,
            max_model_len=self.model_len,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            depth=_DEPTH,
            cache_groups=model.cache_groups(self.block_size),
            num_blocks=self.num_blocks,
            model_fingerprint=f"sim:{self.model}",
            max_logprobs=0,
            honoured=HONOURED,
        )


_plan_slabs = cache(plan_slabs)
