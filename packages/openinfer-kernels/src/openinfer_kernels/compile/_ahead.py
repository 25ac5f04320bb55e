"""All kernels of an executor compiled while it starts, as far as the cache has not got them.

What an executor's steps launch is found once and written down beside Triton's cache, so that a
later start has nothing to do but to look whether it is all there.
"""

import logging
from collections.abc import Callable
from functools import partial
from threading import Thread

from openinfer_kernels.compile._folder import kernel_folder
from openinfer_kernels.compile._forked import Forked, num_processes
from openinfer_kernels.compile._kernel_report import KernelReport

_TIMEOUT_S = 600.0

_logger = logging.getLogger(__name__)


class CompileAhead:
    """The kernels of steps, compiled by other processes while this one goes on.

    Args:
        run: goes through the steps on the meta device, in a process of its own.
        identity: of the steps: equal if they launch the same kernels.
        arch: compute capability of the GPU, 90 for sm_90.
    """

    def __init__(self, run: Callable[[], None], identity: str, arch: int) -> None:
        """Looks what there is, and begins to compile what is missing."""
        # Not every system has Triton, and none but a GPU's executor needs it.
        from triton.runtime.cache import triton_key

        from openinfer_kernels.compile._builds import COMPILER_BYTES
        from openinfer_kernels.compile._kernel_list import KernelList, compile_all

        self._num_compilers = num_processes(COMPILER_BYTES)
        self._num_cached: int | None = 0
        self._forked: Forked[KernelReport] | None = None
        try:
            kernels = KernelList(identity, arch)
            self._num_cached = kernels.num_cached()
        except OSError as error:  # a cache that can only be read may have what is launched
            _logger.warning("kernels are compiled when they are first needed: %s", error)
        if self._num_cached is None:
            work = partial(compile_all, run, kernels, arch, self._num_compilers)
            self._forked = Forked(work)
        # A third of a second that the first launch of this process would take: it hashes Triton.
        Thread(target=triton_key, daemon=True).start()

    def __enter__(self) -> "CompileAhead":
        return self

    def __exit__(self, *_: object) -> None:
        """Ends what still runs."""
        if self._forked is not None:
            self._forked.close()

    def wait(self) -> KernelReport:
        """Returns once all that compiles is in the cache; what does not is said when launched."""
        if self._num_cached is not None:
            return KernelReport(num_kernels=self._num_cached, num_compiled=0)
        assert self._forked is not None, "it is waited for once"
        forked, self._forked = self._forked, None
        _logger.info(
            "looking for kernels to compile, %d at a time, into %s; later starts find them there",
            self._num_compilers,
            kernel_folder("cuda"),
        )
        try:
            report = forked.take(_TIMEOUT_S)
        except ChildProcessError as error:
            _logger.warning("kernels are compiled when they are first needed: %s", error)
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
