"""Triton kernels that steps would launch, noted without a GPU and compiled into Triton's cache.

Steps run on torch's meta device, where nothing is computed. Triton asks `jit_cache_hook` before it
compiles a kernel; the hook notes the kernel and tells Triton to skip it.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import triton
from triton._C.libtriton import get_cache_invalidating_env_vars
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.driver import CudaLauncher, CudaUtils, libcuda_dirs
from triton.compiler import ASTSource, make_backend
from triton.runtime.cache import get_cache_key, get_cache_manager
from triton.runtime.driver import driver

from openinfer_kernels.gpu._gpu import Gpu, set_meta_gpu

COMPILER_BYTES = 1 << 30
"""Memory that the compiler of one kernel may take."""
_WARP = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class NotedKernel:
    """One kernel with everything that its machine code depends on.

    Attributes:
        name: Name of the kernel.
        arguments: Argument name to what the kernel is compiled for. For a compile-time argument it
            is the value. For a run-time argument it is "1" or "None" if the argument has that
            value, else its type, followed by "/16" if 16 divides it.
        digest: Name of the kernel's folder in Triton's cache.
        compile: Returns the compiled kernel, from Triton's cache if the cache has it.
    """

    name: str
    arguments: Mapping[str, Any]
    digest: str
    compile: Callable[[], Any]

    @property
    def is_cached(self) -> bool:
        """Whether Triton's cache has the kernel."""
        return is_cached(self.name, self.digest)

    def build(self) -> str | None:
        """Compiles the kernel, and its launcher if the machine has a GPU driver.

        Returns:
            None, or the reason why the kernel cannot be compiled. Launching it fails alike.
        """
        try:
            kernel = self.compile()
            if _has_driver():
                CudaUtils()
                CudaLauncher(kernel.src, kernel.metadata)
        except Exception as error:
            return f"{self.name}: {str(error).strip() or type(error).__name__}"
        return None


def is_cached(name: str, digest: str) -> bool:
    """Whether Triton's cache has a kernel.

    A damaged entry, for example of a full disk, is removed: Triton would fail at every launch.
    """
    folder, metadata = get_cache_manager(digest), f"{name[:150]}.json"
    try:
        return bool(folder.get_group(metadata))
    except (AttributeError, TypeError, ValueError):  # not JSON, or not of that form
        entry = folder.get_file(f"__grp__{metadata}")
        if entry is not None:
            with suppress(OSError):  # the cache is read-only; launching the kernel will fail
                Path(entry).unlink()
        return False


def note_launches(gpu: Gpu, note: Callable[[NotedKernel], None]) -> None:
    """Makes Triton note kernels instead of launching them, for the rest of this process.

    The meta device then stands for the GPU, so that ops choose the kernels of that GPU.

    Args:
        gpu: The GPU to compile for.
        note: Called with each kernel, once.
    """
    target = GPUTarget("cuda", gpu.arch, _WARP)
    backend, environment = make_backend(target), get_cache_invalidating_env_vars()
    known: set[tuple[int, str]] = set()

    def skip(*, fn: Any, compile: Mapping[str, Any], **_: Any) -> bool:
        function, specialization = fn.jit_function, compile["specialization_data"]
        if (id(function), specialization) in known:
            return True
        known.add((id(function), specialization))
        source = _source(function, compile)
        options = backend.parse_options(_options(specialization))
        key = get_cache_key(source, backend, options, env_vars=environment)
        kernel = NotedKernel(
            name=function.fn.__name__,
            arguments=_arguments(function, compile),
            digest=hashlib.sha256(key.encode()).hexdigest(),
            compile=lambda: triton.compile(source, target=target, options=options.__dict__),
        )
        note(kernel)
        return True

    triton.knobs.runtime.jit_cache_hook = skip
    driver.set_active(_NoDevice(target))
    set_meta_gpu(gpu)


def _source(function: Any, compile: Mapping[str, Any]) -> ASTSource:
    (attributes,) = compile["configs"]
    parts = function, compile["signature"], compile["constants"], attributes
    if function.is_gluon():
        from triton.experimental.gluon._runtime import GluonASTSource  # not in every Triton

        return GluonASTSource(*parts)
    return ASTSource(*parts)


def _options(specialization: str) -> dict[str, Any]:
    """Reads a launch's options from JSON, in which tuples are lists."""
    options = json.loads(specialization)["options"]
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in options.items()
    }


def _arguments(function: Any, compile: Mapping[str, Any]) -> dict[str, Any]:
    constants, (attributes,) = compile["constants"], compile["configs"]
    arguments = {}
    for at, parameter in enumerate(function.params):
        if parameter.is_constexpr:
            value = constants[(at,)]
        elif (at,) in constants:
            value = str(constants[(at,)])
        else:
            value = compile["signature"][parameter.name]
            value += "/16" * bool(attributes.get((at,)))
        arguments[parameter.name] = value
    return arguments


@cache
def _has_driver() -> bool:
    try:
        return bool(libcuda_dirs())
    except (AssertionError, OSError):
        return False


class _NoDevice:
    """A driver without a GPU: Triton asks it what to compile for."""

    def __init__(self, target: GPUTarget) -> None:
        self._target = target

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> str:
        # Triton keeps compiled kernels by device; those of a real device would be launched.
        return "meta"

    def get_current_stream(self, device: str) -> int:
        return 0
