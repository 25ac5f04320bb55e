"""The list of an executor's kernels: found by a dry run, compiled, and kept in Triton's cache.

The module imports Triton, which not every system has; `CompileAhead` imports it when it is used.
"""

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import triton
from triton._C.libtriton import get_cache_invalidating_env_vars
from triton.runtime.cache import get_cache_manager

from openinfer_kernels.compile._kernel_report import KernelReport
from openinfer_kernels.compile._noted_kernels import NotedKernel, is_cached, note_launches
from openinfer_kernels.compile._processes import ForkedJobs
from openinfer_kernels.compile._torch_compiler import stand_in_for_torch_compiler
from openinfer_kernels.dispatch import outside_digest
from openinfer_kernels.gpu._gpu import Gpu

_LIST = "kernels.json"


class KernelList:
    """The file in Triton's cache that names the kernels of one executor."""

    def __init__(self, identity: str, gpu: Gpu) -> None:
        """Computes the path of the file.

        Args:
            identity: Equal for executors that launch the same kernels on the same GPU.
            gpu: The GPU.
        """
        versions = triton.__version__, torch.__version__, outside_digest()
        parts = (identity, gpu.arch, gpu.num_multiprocessors, *versions, _environment(), _LIST)
        name = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
        self._folder = get_cache_manager(name)

    def num_cached(self) -> int | None:
        """Returns the number of kernels in the list.

        Returns:
            None if there is no list, if it is damaged, or if Triton's cache lacks a kernel of it.
        """
        path = self._folder.get_file(_LIST)
        if path is None:
            return None
        try:
            kernels: list[tuple[str, str]] = json.loads(Path(path).read_bytes())
            has_all = isinstance(kernels, list) and all(is_cached(*each) for each in kernels)
        except (TypeError, ValueError):  # not JSON, or no list of names and digests
            return None
        return len(kernels) if has_all else None

    def write(self, kernels: Sequence[NotedKernel]) -> None:
        """Writes the list."""
        text = json.dumps([(kernel.name, kernel.digest) for kernel in kernels])
        self._folder.put(text, _LIST, binary=False)


def _environment() -> dict[str, str]:
    """Returns the environment variables on which compiled kernels may depend.

    Variables that only say where Triton's files are do not count. Some of the others change no
    kernel: a change of these costs a dry run, but no compiling.
    """
    told = {name: value for name, value in os.environ.items() if name.startswith("TRITON_")}
    told = {name: value for name, value in told.items() if not name.endswith(("_DIR", "_HOME"))}
    return dict(sorted({**told, **get_cache_invalidating_env_vars()}.items()))


def compile_all(
    run: Callable[[], None], kernels: KernelList, gpu: Gpu, num_compilers: int
) -> KernelReport:
    """Does the dry run and compiles each kernel as soon as it is noted.

    For a forked process of its own: it changes logging, torch and Triton for the whole process.

    Args:
        run: Runs the steps on the meta device.
        kernels: Where the list is written if all kernels could be compiled.
        gpu: The GPU to compile for.
        num_compilers: Kernels that are compiled at a time.
    """
    begun = time.perf_counter()
    logging.disable()  # the parent process logs what the steps would log
    torch.set_num_threads(1)
    stand_in_for_torch_compiler()
    jobs: ForkedJobs[str | None] = ForkedJobs(num_compilers)
    noted: list[NotedKernel] = []
    missing: list[NotedKernel] = []

    def note(kernel: NotedKernel) -> None:
        noted.append(kernel)
        if not kernel.is_cached:
            missing.append(kernel)
            jobs.add(kernel.build)

    failed: list[str] = []
    note_launches(gpu, note)
    try:
        run()
    except Exception as error:  # kernels that were not noted are compiled when first launched
        failed.append(f"the dry run of the steps failed: {type(error).__name__}: {error}")
    for kernel, reason in zip(missing, jobs.results(), strict=True):
        if isinstance(reason, ChildProcessError):  # the compiler crashed, or had no memory
            reason = f"{kernel.name}: {reason}"
        if reason is not None:
            failed.append(reason)
    if not failed:
        kernels.write(noted)
    return KernelReport(
        num_kernels=len(noted),
        num_compiled=len(missing),
        failed=tuple(failed),
        seconds=time.perf_counter() - begun,
    )
