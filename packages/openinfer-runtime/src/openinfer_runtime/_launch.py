"""From a model line's decision to an executor: device, threads, weights, memory, arena."""

import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from openinfer_engine import ExecutorInfo, LaunchSpec, ServePlan, physical_cores, read_config
from openinfer_kernels import KernelError
from openinfer_kv_cache import CacheGroup, Plane
from openinfer_nn import (
    CacheSpec,
    CacheView,
    ModelError,
    load_weights,
    pack_weights,
    read_checkpoint,
    weight_bytes,
)
from openinfer_runtime._executor import TorchExecutor
from openinfer_runtime._memory import MemoryPlan, allocate_arena, check_host_memory, plan_memory
from openinfer_runtime._model import TorchModel
from openinfer_runtime._recorder import CudaGraphs
from openinfer_runtime._rehearsal import rehearse
from openinfer_runtime._shapes import StepShapes
from openinfer_runtime._threads import useful_threads
from openinfer_runtime.errors import DeviceUnavailable, InsufficientMemory, ModelRejected
from openinfer_sampler import HONOURED

MAX_LOGPROBS = 20
_DUMMY_STD = 0.02

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """What a model is built for.

    Attributes:
        device: where its weights go.
        dtype: of weights, activations and cache.
        block_size: tokens a cache block holds.
        max_model_len: longest sequence.
        quantization: of the products' weights; None keeps the dtype.
    """

    device: torch.device
    dtype: torch.dtype
    block_size: int
    max_model_len: int
    quantization: Literal["int8", "int4"] | None = None


def launch_torch(
    spec: LaunchSpec, plan: ServePlan, build: Callable[[BuildOptions], TorchModel]
) -> TorchExecutor:
    """Builds and loads a model and returns its executor, ready to step.

    A sequence length that nobody asked for shrinks to what the cache holds; `info` says to what.

    Args:
        spec: what was asked for.
        plan: what the line decided.
        build: allocates the model; its weights are filled here.

    Raises:
        DeviceUnavailable: no such device.
        InsufficientMemory: it does not fit; says which flag to turn.
        ModelRejected: the checkpoint or the kernels say no.
        StepFailed: the model does not run.
    """
    device = _resolve_device(plan.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    block_size = spec.engine.block_size
    build_options = BuildOptions(
        device=device,
        dtype=getattr(torch, plan.dtype),
        block_size=block_size,
        max_model_len=plan.max_model_len,
        quantization=spec.engine.quantization,
    )
    with torch.inference_mode(), _memory_errors_explained():
        with _timed("weights loaded"):
            model = _load(spec, build, build_options)
        weights_bytes = sum(parameter.nbytes for parameter in model.parameters())
        _set_threads(spec.engine.num_threads, weights_bytes)
        shapes = _recorded_shapes(spec, plan, device)
        with _timed("memory planned"):
            memory = plan_memory(
                model,
                device,
                spec.engine,
                vocab_size=plan.vocab_size,
                max_model_len=plan.max_model_len,
                max_num_seqs=plan.max_num_seqs,
                max_num_batched_tokens=plan.max_num_batched_tokens,
                shapes=shapes,
            )
        cache_spec = model.cache_spec()
        num_blocks = memory.num_blocks + 1  # the last is where padding writes
        arena = allocate_arena(num_blocks * cache_spec.bytes_per_block(block_size), device)
        cache = CacheView(arena, cache_spec, block_size=block_size, num_blocks=num_blocks)
    if memory.max_model_len < plan.max_model_len:
        _logger.warning(
            "max_model_len is %d instead of the model's %d: that is what the KV cache holds; "
            "--kv-cache-memory-bytes gives it more",
            memory.max_model_len,
            plan.max_model_len,
        )
    group = _cache_group(cache_spec, block_size)
    info = _info(spec, plan, memory, group, device)
    record = None if shapes is None else CudaGraphs(device)
    with _timed("first steps run"):
        executor = TorchExecutor(model, cache, info, record)
        rehearse(executor)
    return executor


@contextmanager
def _timed(done: str) -> Iterator[None]:
    """Says how long a part of the start has taken."""
    begun = time.perf_counter()
    yield
    _logger.info("%s in %.2f s", done, time.perf_counter() - begun)


def _recorded_shapes(spec: LaunchSpec, plan: ServePlan, device: torch.device) -> StepShapes | None:
    """The steps that are recorded and replayed; None, said why, where every one is launched."""
    if device.type != "cuda":
        return None
    if spec.engine.enforce_eager:
        _logger.info("no step is recorded: --enforce-eager")
        return None
    return StepShapes(max_num_seqs=plan.max_num_seqs, max_num_tokens=plan.max_num_batched_tokens)


def fingerprint(spec: LaunchSpec) -> str:
    """Digest over a checkpoint's config, its tensors' names, dtypes and shapes, and quantization.

    Raises:
        ModelRejected: the tensors' headers are unreadable.
    """
    tensors: list[tuple[str, str, tuple[int, ...]]] = []
    if spec.engine.load_format != "dummy":
        try:
            entries = read_checkpoint(Path(spec.model_path))
        except ModelError as error:
            raise ModelRejected(str(error)) from error
        tensors = sorted((entry.name, entry.dtype, entry.shape) for entry in entries.values())
    identity: list[Any] = [read_config(spec.model_path), tensors]
    if spec.engine.quantization is not None:
        identity.append(spec.engine.quantization)
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:32]


def _info(
    spec: LaunchSpec,
    plan: ServePlan,
    memory: MemoryPlan,
    group: CacheGroup,
    device: torch.device,
) -> ExecutorInfo:
    return ExecutorInfo(
        device=str(device),
        dtype=plan.dtype,
        vocab_size=plan.vocab_size,
        eos_token_ids=plan.eos_token_ids,
        max_model_len=memory.max_model_len,
        max_num_seqs=plan.max_num_seqs,
        max_num_batched_tokens=plan.max_num_batched_tokens,
        depth=2 if device.type == "cuda" else 1,
        cache_groups=(group,),
        num_blocks=memory.num_blocks,
        model_fingerprint=fingerprint(spec),
        max_logprobs=min(MAX_LOGPROBS, plan.vocab_size),
        honoured=HONOURED | {"grammar", "prompt_logprobs"},
        memory=memory.parts,
    )


def _resolve_device(name: str) -> torch.device:
    if name == "cpu":
        return torch.device("cpu")
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    if name == "auto":
        return torch.device("cpu")
    reason = (
        "this torch is built without CUDA"
        if torch.version.cuda is None
        else "torch finds no usable NVIDIA GPU; see nvidia-smi, or take --device cpu"
    )
    raise DeviceUnavailable(name, reason)


def _set_threads(wanted: int | None, weights_bytes: int) -> None:
    if wanted is not None and wanted > (cores := physical_cores()):
        _logger.warning(
            "--num-threads %d on %d cores: threads that wait for a core make every step slower",
            wanted,
            cores,
        )
    torch.set_num_threads(wanted or useful_threads(weights_bytes))


def _load(
    spec: LaunchSpec, build: Callable[[BuildOptions], TorchModel], options: BuildOptions
) -> TorchModel:
    try:
        model = build(options)
        assert isinstance(model, torch.nn.Module)
        if options.device.type == "cpu":
            # Before they are written: until then they take address space and no memory.
            check_host_memory(weight_bytes(model))
        if spec.engine.load_format == "dummy":
            _fill_randomly(model)
            pack_weights(model)
        else:
            load_weights(Path(spec.model_path), model, model.weight_map())
    except (ModelError, KernelError) as error:
        raise ModelRejected(str(error)) from error
    return model


@contextmanager
def _memory_errors_explained() -> Iterator[None]:
    """What a device says when it is full, as a sentence about what to do."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        free, total = torch.cuda.mem_get_info()
        raise InsufficientMemory(
            "the device is out of memory while the model is loaded and measured: free memory that "
            "others hold, lower --max-num-batched-tokens, --max-num-seqs or "
            "--kv-cache-memory-bytes, or take a smaller model",
            needed_bytes=total,
            available_bytes=free,
        ) from error


def _fill_randomly(model: TorchModel) -> None:
    """Weights of a plausible scale, the same ones every time; norms are the identity."""
    for index, parameter in enumerate(model.parameters()):
        if parameter.dim() < 2:
            parameter.fill_(1.0)
            continue
        generator = torch.Generator(parameter.device).manual_seed(index)
        parameter.normal_(0.0, _DUMMY_STD, generator=generator)


def _cache_group(spec: CacheSpec, block_size: int) -> CacheGroup:
    planes = tuple(
        Plane(
            name=plane.name,
            bytes_per_token=spec.num_layers
            * plane.num_heads
            * plane.head_dim
            * spec.dtype.itemsize,
        )
        for plane in spec.planes
    )
    return CacheGroup(name=spec.group, kind=spec.kind, tokens_per_block=block_size, planes=planes)
