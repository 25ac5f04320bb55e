"""The memory plan: bytes taken before the first request, and blocks that fit in the rest.

device memory = weights + activations of the largest step + sampling + KV cache
"""

from dataclasses import dataclass

import torch

from openinfer_engine import EngineOptions, ServePlan, host_memory_bytes
from openinfer_kernels import zeros_in_huge_pages
from openinfer_nn import CacheSpec, CacheView
from openinfer_runtime._model import TorchModel
from openinfer_runtime.errors import InsufficientMemory
from openinfer_runtime.steps._step_inputs import blank_step
from openinfer_runtime.steps._step_shapes import StepShapes
from openinfer_sampler import Sampler

_MAX_CPU_POOL_BYTES = 4 << 30
# Steps allocate tensors of different sizes, and the allocator caches some of each size.
_FRAGMENTATION_BYTES = 128 << 20
# The driver keeps the launches of a CUDA graph and their arguments in memory of its own.
_BYTES_PER_GRAPH = 3 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Use of a device's memory.

    Attributes:
        parts: (name, bytes), in the order of the start log's table.
        num_blocks: Blocks of the KV cache.
        max_model_len: Longest sequence, in tokens: as requested, or else what the cache holds.
    """

    parts: tuple[tuple[str, int], ...]
    num_blocks: int
    max_model_len: int


def plan_memory(
    model: TorchModel,
    device: torch.device,
    options: EngineOptions,
    plan: ServePlan,
    shapes: StepShapes | None = None,
) -> MemoryPlan:
    """Measures the memory of the largest step and gives the rest to the cache.

    Args:
        model: Model with its weights.
        device: Device of the model.
        options: Options of the engine.
        plan: Sizes of the largest step. If `options` sets no `max_model_len`, the plan's may be
            shortened.
        shapes: Shapes that are captured; None captures no steps.

    Raises:
        InsufficientMemory: One sequence of the requested length does not fit.
    """
    weights = sum(parameter.nbytes for parameter in model.parameters())
    spec = model.cache_spec()
    step = _LargestStep(
        plan.vocab_size,
        plan.max_num_seqs,
        plan.max_num_batched_tokens,
        options.block_size,
        plan.eos_token_ids,
    )
    if device.type == "cuda":
        activations, sampling = step.measure(model, device)
        graphs = 0
        if shapes is not None:
            logits = spec.dtype.itemsize * shapes.max_num_seqs * plan.vocab_size
            graphs = logits + _graph_bytes(shapes, activations, plan.max_num_batched_tokens)
        available = _cuda_cache_bytes(device, options, activations + sampling + graphs)
    else:
        graphs = 0
        activations, sampling = step.estimate(model)
        available = _host_cache_bytes(options, weights + activations + sampling)
    if options.kv_cache_bytes is not None:
        available = options.kv_cache_bytes
    bytes_per_block = spec.bytes_per_block(options.block_size)
    num_blocks = max(0, available) // bytes_per_block
    # More blocks than this are never used: every slot at its longest, and as much again for cached
    # prefixes.
    useful = 2 * plan.max_num_seqs * -(-plan.max_model_len // options.block_size)
    if options.kv_cache_bytes is None:
        num_blocks = min(num_blocks, useful)
    length = _fitting_length(num_blocks, spec, options, plan.max_model_len, device)
    return MemoryPlan(
        parts=(
            (_weights_label(options), weights),
            ("activations", activations),
            ("sampling", sampling),
            *((("graphs", graphs),) if graphs else ()),
            ("KV cache", num_blocks * bytes_per_block),
        ),
        num_blocks=num_blocks,
        max_model_len=length,
    )


def _graph_bytes(shapes: StepShapes, activations: int, max_num_batched_tokens: int) -> int:
    """Returns the bytes of captured steps without logits.

    All captures share one pool of activations, and each has its launches.
    """
    share = min(1.0, shapes.max_num_tokens / max_num_batched_tokens)
    return int(share * activations) + shapes.count * _BYTES_PER_GRAPH


def _weights_label(options: EngineOptions) -> str:
    return f"weights ({options.quantization})" if options.quantization else "weights"


def allocate_arena(num_bytes: int, device: torch.device) -> torch.Tensor:
    """Returns [num_bytes], uint8, all zero. On the CPU a page takes memory once it is written."""
    if device.type == "cpu":
        return zeros_in_huge_pages(num_bytes)
    return torch.zeros(num_bytes, dtype=torch.uint8, device=device)


def allocate_cache(
    spec: CacheSpec, *, block_size: int, num_blocks: int, device: torch.device
) -> CacheView:
    """Returns the view of a new arena with all entries zero."""
    arena = allocate_arena(num_blocks * spec.bytes_per_block(block_size), device)
    return CacheView(arena, spec, block_size=block_size, num_blocks=num_blocks)


@dataclass(frozen=True, slots=True)
class _LargestStep:
    """A step of one sequence that fills the token budget, with logits for every slot."""

    vocab_size: int
    num_logits: int
    num_tokens: int
    block_size: int
    eos_token_ids: tuple[int, ...]

    def measure(self, model: TorchModel, device: torch.device) -> tuple[int, int]:
        """Runs the step on a CUDA device; returns peak bytes of forward pass and sampling."""
        cache = allocate_cache(
            model.cache_spec(),
            block_size=self.block_size,
            num_blocks=-(-self.num_tokens // self.block_size),
            device=device,
        )
        inputs = blank_step(
            self.num_tokens, device, block_size=self.block_size, num_logits=self.num_logits
        )
        before = _settled(device)
        hidden = model.forward(inputs, cache)
        logits = model.logits(hidden.index_select(0, inputs.logits_indices))
        forward = torch.cuda.max_memory_allocated(device) - before
        del hidden
        before = _settled(device)
        self._sample(logits, device)
        sampling = torch.cuda.max_memory_allocated(device) - before
        return forward, sampling

    def estimate(self, model: TorchModel) -> tuple[int, int]:
        """Estimates these bytes on a host, from shapes: torch does not count host allocations."""
        matrices = [p for p in model.parameters() if p.dim() == 2 and p.shape[0] != self.vocab_size]
        widest = max((p.shape[0] + p.shape[1] for p in matrices), default=0)
        itemsize = max((p.itemsize for p in model.parameters()), default=4)
        scores = 4 * self.num_logits * self.vocab_size
        # 4 copies of the scores as temporaries, and two tables with a number per slot and id.
        return 2 * self.num_tokens * widest * itemsize + scores, (4 + 2) * scores

    def _sample(self, logits: torch.Tensor, device: torch.device) -> None:
        # The executor's sampler has the same arguments, so it launches the same kernels.
        sampler = Sampler(
            num_slots=self.num_logits,
            vocab_size=self.vocab_size,
            device=device,
            eos_token_ids=self.eos_token_ids,
        )
        sampler.sample_costliest(logits)
        torch.cuda.synchronize(device)


def _settled(device: torch.device) -> int:
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def _cuda_cache_bytes(device: torch.device, options: EngineOptions, step_bytes: int) -> int:
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    used = total - free
    return int(total * options.gpu_memory_utilization) - used - step_bytes - _FRAGMENTATION_BYTES


def check_host_memory(held_bytes: int) -> int:
    """Returns the bytes of host memory that are left. With more, the OOM killer ends the process.

    Args:
        held_bytes: Bytes of weights and buffers.

    Raises:
        InsufficientMemory: No memory is left.
    """
    total = host_memory_bytes()
    if held_bytes >= total:
        raise InsufficientMemory(
            f"weights and buffers need {gib(held_bytes)}, this machine has {gib(total)}; "
            "lower --max-num-batched-tokens or --max-num-seqs, or take a smaller model",
            needed_bytes=held_bytes,
            available_bytes=total,
        )
    return total - held_bytes


def _host_cache_bytes(options: EngineOptions, held_bytes: int) -> int:
    left = check_host_memory(held_bytes)
    asked = options.kv_cache_bytes
    if asked is not None and asked > left:
        raise InsufficientMemory(
            f"--kv-cache-memory-bytes asks for {gib(asked)}, but weights and buffers leave only "
            f"{gib(left)} of this machine's memory; lower it",
            needed_bytes=held_bytes + asked,
            available_bytes=held_bytes + left,
        )
    return min(_MAX_CPU_POOL_BYTES, host_memory_bytes() // 4, left)


def _fitting_length(
    num_blocks: int,
    spec: CacheSpec,
    options: EngineOptions,
    max_model_len: int,
    device: torch.device,
) -> int:
    """Returns the longest sequence that the cache holds, at most `max_model_len` tokens."""
    num_tokens = num_blocks * options.block_size
    if num_tokens >= max_model_len:
        return max_model_len
    if options.max_model_len is None and num_tokens:
        return num_tokens
    needed = -(-max_model_len // options.block_size) * spec.bytes_per_block(options.block_size)
    raise InsufficientMemory(
        f"one sequence of {max_model_len} tokens needs {gib(needed)} of KV cache, but only "
        f"{gib(num_blocks * spec.bytes_per_block(options.block_size))} are left: "
        f"{_advice(device, num_tokens)}",
        needed_bytes=needed,
        available_bytes=num_blocks * spec.bytes_per_block(options.block_size),
    )


def _advice(device: torch.device, num_tokens: int) -> str:
    shorter = f"set --max-model-len to {num_tokens} or less, " if num_tokens else ""
    if device.type == "cpu":
        return f"{shorter}{'or ' if shorter else ''}raise --kv-cache-memory-bytes"
    return (
        f"{shorter}raise --gpu-memory-utilization, or lower --max-num-seqs or "
        "--max-num-batched-tokens"
    )


def gib(num_bytes: int) -> str:
    """Returns a number of bytes as text, in MiB or GiB."""
    if num_bytes < 1 << 30:
        return f"{num_bytes / (1 << 20):.2f} MiB"
    return f"{num_bytes / (1 << 30):.2f} GiB"
