"""Compiling the GPU kernels that Triton's cache lacks, while an executor starts.

Triton compiles a kernel when it is first launched, one after the other, and holds the GIL. So a
forked process does a dry run of the steps on the meta device, which finds the kernels, and forks a
compiler process for each kernel that Triton's cache lacks. The list of kernels is kept in that
cache: a later start of the same executor only checks that the cache has them all.
"""

import logging
from collections.abc import Callable
from functools import partial
from threading import Thread

from openinfer_kernels.compile._folder import kernel_folder
from openinfer_kernels.compile._kernel_report import KernelReport
from openinfer_kernels.compile._processes import ForkedJob, num_processes
from openinfer_kernels.gpu._gpu import Gpu

_TIMEOUT_S = 600.0

_logger = logging.getLogger(__name__)


class CompileAhead:
    """The compiling of an executor's kernels, in other processes; a context manager.

    Without it, or if it fails, Triton compiles each kernel when it is first launched.
    """

    def __init__(self, run: Callable[[], None], identity: str, gpu: Gpu) -> None:
        """Looks for the list of kernels; starts to find and compile them if something is missing.

        Args:
            run: Runs the steps on the meta device; called in a forked process.
            identity: Equal for steps that launch the same kernels.
            gpu: The GPU to compile for.
        """
        self._num_cached: int | None = 0
        self._job: ForkedJob[KernelReport] | None = None
        try:
            # Not every system has Triton, and some of these names are not public.
            from triton.runtime.cache import triton_key

            from openinfer_kernels.compile._kernel_list import KernelList, compile_all
            from openinfer_kernels.compile._noted_kernels import COMPILER_BYTES

            kernels = KernelList(identity, gpu)
            self._num_cached = kernels.num_cached()
        except (ImportError, OSError) as error:  # another Triton, or a cache without permission
            _logger.warning("kernels are compiled when they are first launched: %s", error)
            return
        if self._num_cached is None:
            self._num_compilers = num_processes(COMPILER_BYTES)
            self._job = ForkedJob(partial(compile_all, run, kernels, gpu, self._num_compilers))
        # Hashes the files of Triton: a third of a second that the first launch would take.
        Thread(target=triton_key, daemon=True).start()

    def __enter__(self) -> "CompileAhead":
        return self

    def __exit__(self, *_: object) -> None:
        """Kills the processes that still run."""
        if self._job is not None:
            self._job.close()

    def wait(self) -> KernelReport:
        """Waits until the kernels are in Triton's cache, and reports. Called once.

        A kernel that cannot be compiled is logged and reported; launching it raises the error.
        """
        if self._num_cached is not None:
            return KernelReport(num_kernels=self._num_cached, num_compiled=0)
        assert self._job is not None, "wait is called once"
        job, self._job = self._job, None
        _logger.info(
            "looking for kernels to compile, %d at a time, into %s; later starts find them there",
            self._num_compilers,
            kernel_folder("cuda"),
        )
        try:
            report = job.result(_TIMEOUT_S)
        except ChildProcessError as error:
            _logger.warning("kernels are compiled when they are first launched: %s", error)
            return KernelReport(num_kernels=0, num_compiled=0)
        for reason in report.failed:
            _logger.warning("compiling ahead: %s", reason)
        _logger.info(
            "%d of %d kernels compiled in %.2f s",
            report.num_compiled,
            report.num_kernels,
            report.seconds,
        )
        return report
