"""The launch of an executor: device, threads, weights, memory plan, arena, first steps."""

import logging
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import torch

from openinfer_engine import LaunchSpec, ServePlan, physical_cores
from openinfer_kernels import CompileAhead, KernelError, gpu_of
from openinfer_nn import (
    ModelError,
    fill_dummy_weights,
    load_weights,
    pack_weights,
    weight_bytes,
)
from openinfer_runtime._executor import TorchExecutor
from openinfer_runtime._model import Build, BuildOptions, TorchModel
from openinfer_runtime.errors import DeviceUnavailable, InsufficientMemory, ModelRejected
from openinfer_runtime.graphs._capture import CudaGraphs
from openinfer_runtime.startup._executor_info import cache_group, executor_info, fingerprint
from openinfer_runtime.startup._first_steps import run_first_steps
from openinfer_runtime.startup._kernels_ahead import compile_ahead
from openinfer_runtime.startup._memory_plan import (
    MemoryPlan,
    allocate_cache,
    check_host_memory,
    plan_memory,
)
from openinfer_runtime.startup._threads import useful_threads
from openinfer_runtime.steps._step_shapes import StepShapes

_logger = logging.getLogger(__name__)


def launch_torch(spec: LaunchSpec, plan: ServePlan, build: Build) -> TorchExecutor:
    """Builds and loads a model and returns its executor, ready to step.

    If no sequence length was requested, it shrinks to what the cache holds (`info.max_model_len`).

    Args:
        spec: Launch request.
        plan: Limits, device and dtype that the model line chose.
        build: Allocates the model; this function fills its weights.

    Raises:
        DeviceUnavailable: The device does not exist.
        InsufficientMemory: The model does not fit; the message names the flag to change.
        ModelRejected: The model cannot be built from this checkpoint on this device.
        StepFailed: The model does not run.
    """
    device = _resolve_device(plan.device)
    block_size = spec.engine.block_size
    build_options = BuildOptions(
        device=device,
        dtype=getattr(torch, plan.dtype),
        block_size=block_size,
        max_model_len=plan.max_model_len,
        quantization=spec.engine.quantization,
    )
    with (
        _compiling_ahead(spec, plan, build, build_options) as kernels,
        torch.inference_mode(),
        _memory_errors_explained(),
    ):
        if device.type == "cuda":
            torch.cuda.set_device(device)
        with _timed("weights loaded"):
            model = _load(spec, build, build_options)
        if kernels is not None:
            kernels.wait()
        weights_bytes = sum(parameter.nbytes for parameter in model.parameters())
        _set_threads(spec.engine.num_threads, weights_bytes)
        shapes = _captured_shapes(spec, plan, device)
        memory = _planned_memory(model, device, spec, plan, shapes)
        cache = allocate_cache(
            model.cache_spec(),
            block_size=block_size,
            num_blocks=memory.num_blocks + 1,  # padding writes to the last block
            device=device,
        )
    group = cache_group(cache.spec, block_size)
    info = executor_info(spec, plan, memory, group, device, fingerprint(spec))
    capture = None if shapes is None else CudaGraphs(device)
    with _timed("first steps run"):
        executor = TorchExecutor(model, cache, info, capture)
        run_first_steps(executor)
    return executor


def _planned_memory(
    model: TorchModel,
    device: torch.device,
    spec: LaunchSpec,
    plan: ServePlan,
    shapes: StepShapes | None,
) -> MemoryPlan:
    """Plans the memory; logs a warning if that shortens the longest sequence."""
    with _timed("memory planned"):
        memory = plan_memory(model, device, spec.engine, plan, shapes)
    if memory.max_model_len < plan.max_model_len:
        _logger.warning(
            "max_model_len is %d instead of the model's %d, because the KV cache holds no more; "
            "raise --kv-cache-memory-bytes for longer sequences",
            memory.max_model_len,
            plan.max_model_len,
        )
    return memory


def _compiling_ahead(
    spec: LaunchSpec,
    plan: ServePlan,
    build: Build,
    options: BuildOptions,
) -> AbstractContextManager[CompileAhead | None]:
    if options.device.type != "cuda":
        return nullcontext()
    gpu = gpu_of(options.device)
    assert gpu is not None, "it is a CUDA device"
    return compile_ahead(spec, plan, build, options, gpu)


@contextmanager
def _timed(done: str) -> Iterator[None]:
    """Logs the duration of a part of the start."""
    begun = time.perf_counter()
    yield
    _logger.info("%s in %.2f s", done, time.perf_counter() - begun)


def _captured_shapes(spec: LaunchSpec, plan: ServePlan, device: torch.device) -> StepShapes | None:
    """Returns the shapes that are captured; None where every operation is launched."""
    if device.type != "cuda":
        return None
    if spec.engine.enforce_eager:
        _logger.info("no steps are captured: --enforce-eager")
        return None
    return StepShapes(max_num_seqs=plan.max_num_seqs, max_num_tokens=plan.max_num_batched_tokens)


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
        else "torch finds no usable NVIDIA GPU; see nvidia-smi, or use --device cpu"
    )
    raise DeviceUnavailable(name, reason)


def _set_threads(wanted: int | None, weights_bytes: int) -> None:
    if wanted is not None and wanted > (cores := physical_cores()):
        _logger.warning(
            "--num-threads %d on %d cores: threads that wait for a core slow down every step",
            wanted,
            cores,
        )
    torch.set_num_threads(wanted or useful_threads(weights_bytes))


def _load(spec: LaunchSpec, build: Build, options: BuildOptions) -> TorchModel:
    try:
        model = build(options)
        assert isinstance(model, torch.nn.Module)
        if options.device.type == "cpu":
            # Checked before loading: weights that are not written yet take no memory.
            check_host_memory(weight_bytes(model))
        if spec.engine.load_format == "dummy":
            fill_dummy_weights(model)
            pack_weights(model)
        else:
            load_weights(Path(spec.model_path), model, model.weight_map())
    except (ModelError, KernelError) as error:
        raise ModelRejected(str(error)) from error
    return model


@contextmanager
def _memory_errors_explained() -> Iterator[None]:
    """Turns a device's out-of-memory error into one that says what to do."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        free, total = torch.cuda.mem_get_info()
        raise InsufficientMemory(
            "the device ran out of memory while the model was loaded and measured: free memory of "
            "other processes, lower --max-num-batched-tokens, --max-num-seqs or "
            "--kv-cache-memory-bytes, or take a smaller model",
            needed_bytes=total,
            available_bytes=free,
        ) from error
