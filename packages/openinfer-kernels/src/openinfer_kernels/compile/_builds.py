"""Triton kernels compiled before they are launched, by as many processes as there are cores.

Triton compiles a kernel when it is first launched, one after the other, and holds the interpreter
while it does: threads gain nothing. Which kernels a model's steps launch is found without a GPU:
inside `noted_launches` the steps run on torch's meta device, where nothing is computed, and what
they launch is noted. What of it is not in Triton's cache yet is compiled by forked processes, which
fill the same cache.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.driver import CudaLauncher, CudaUtils, libcuda_dirs
from triton.runtime._async_compile import AsyncCompileMode
from triton.runtime.cache import get_cache_manager
from triton.runtime.driver import driver

# Memory that the compiler of one kernel may take.
COMPILER_BYTES = 1 << 30
_WARP = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelBuild:
    """One kernel with all that its machine code depends on.

    Attributes:
        name: Of the kernel.
        arguments: Argument name to what was compiled for: the value of a compile-time one, "1" and
            "None" where a run-time one is that, else its type, and "/16" if that divides it.
        digest: What Triton's cache knows it by.
        compile: Returns it compiled, from the cache if it is there.
    """

    name: str
    arguments: Mapping[str, Any]
    digest: str
    compile: Callable[[], Any]

    @property
    def is_cached(self) -> bool:
        """Whether Triton's cache has it."""
        return is_cached(self.name, self.digest)

    def build(self) -> str | None:
        """Compiles it, and what launches it where there is a driver; why not, or None."""
        try:
            kernel = self.compile()
            if _has_driver():
                CudaUtils()
                CudaLauncher(kernel.src, kernel.metadata)
        except Exception as error:  # launching it raises the same
            return f"{self.name}: {str(error).strip() or type(error).__name__}"
        return None


def is_cached(name: str, digest: str) -> bool:
    """Whether Triton's cache has a kernel.

    A damaged entry, say of a disk that was full, is taken out: Triton would fail on it for ever.
    """
    folder, metadata = get_cache_manager(digest), f"{name[:150]}.json"
    try:
        return bool(folder.get_group(metadata))
    except (AttributeError, TypeError, ValueError):  # no JSON, or not of that form
        entry = folder.get_file(f"__grp__{metadata}")
        if entry is not None:
            with suppress(OSError):  # only readable: launching the kernel will say so
                Path(entry).unlink()
        return False


@contextmanager
def noted_launches(arch: int, note: Callable[[KernelBuild], None]) -> Iterator[None]:
    """While it is open, Triton kernels are not launched but noted; for steps on the meta device.

    It changes Triton for the whole process, where nothing else may launch kernels meanwhile.

    Args:
        arch: Compute capability of the GPU to compile for, 90 for sm_90.
        note: Told of each kernel once.
    """
    runtime, former = triton.knobs.runtime, driver._active
    assert runtime.jit_cache_hook is None, "somebody else asks for Triton's calls"
    noting = _Noting(note)
    runtime.jit_cache_hook = noting.begin
    driver.set_active(_NoDevice(arch))
    try:
        with noting:
            yield
    finally:
        driver._active = former
        runtime.jit_cache_hook = None


def noted_arch() -> int | None:
    """The compute capability that kernels are noted for; None where they are launched."""
    active = driver._active
    return active.arch if isinstance(active, _NoDevice) else None


@cache
def _has_driver() -> bool:
    try:
        return bool(libcuda_dirs())
    except (AssertionError, OSError):
        return False


class _Noting(AsyncCompileMode):  # type: ignore[misc]
    """What Triton hands kernels to that it would compile now."""

    def __init__(self, note: Callable[[KernelBuild], None]) -> None:
        super().__init__(None)
        self._note = note
        self._name = ""
        self._arguments: dict[str, Any] = {}
        self._noted: set[str] = set()

    def begin(self, *, fn: Any, compile: Mapping[str, Any], **_: Any) -> bool:
        """Triton's hook: says whose kernel comes next, and not to leave it alone."""
        self._name = fn.jit_function.fn.__name__
        constants, (attributes,) = compile["constants"], compile["configs"]
        self._arguments = {}
        for at, parameter in enumerate(fn.jit_function.params):
            if parameter.is_constexpr:
                value = constants[(at,)]
            elif (at,) in constants:
                value = str(constants[(at,)])
            else:
                value = compile["signature"][parameter.name]
                value += "/16" * bool(attributes.get((at,)))
            self._arguments[parameter.name] = value
        return False

    def submit(self, key: str, compile_fn: Callable[[], Any], finalize_fn: Any) -> "_NoKernel":
        """Notes the kernel."""
        digest = hashlib.sha256(key.encode()).hexdigest()
        if digest not in self._noted:
            self._noted.add(digest)
            build = KernelBuild(
                name=self._name, arguments=self._arguments, digest=digest, compile=compile_fn
            )
            self._note(build)
        return _NoKernel()


class _NoKernel:
    """A compiled kernel that does nothing."""

    function = packed_metadata = None

    def launch_metadata(self, *arguments: Any) -> None:
        """Of nothing."""

    def run(self, *arguments: Any) -> None:
        """Launches nothing."""


class _NoDevice:
    """A driver of no GPU, for kernels to be compiled for one."""

    def __init__(self, arch: int) -> None:
        self.arch = arch
        self._target = GPUTarget("cuda", arch, _WARP)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> str:
        # Triton remembers kernels by device: what is noted must not pass for compiled elsewhere.
        return f"none-{id(self)}"

    def get_current_stream(self, device: Any) -> int:
        return 0
