"""All kernels of an executor compiled while it starts, as far as the cache has not got them.

What an executor's steps launch is found once and written down beside Triton's cache, so that a
later start has nothing to do but to look whether it is all there.
"""

import hashlib
import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Thread

import torch
import triton
from triton.runtime.cache import get_cache_manager, triton_key

from openinfer_kernels._forked import Forked, ForkedJobs, num_cores
from openinfer_kernels._kernel_builds import KernelBuild, is_cached, noted_launches
from openinfer_kernels._untraced import leave_out_compiler

_LIST = "kernels.json"
_TIMEOUT_S = 600.0

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelReport:
    """What became of the kernels of an executor.

    Attributes:
        num_kernels: Kernels that its steps may launch.
        num_compiled: Those that the cache did not have.
        failed: What could not be compiled, and why.
        seconds: From the beginning to the end of compiling.
    """

    num_kernels: int
    num_compiled: int
    failed: tuple[str, ...] = ()
    seconds: float = 0.0


class CompileAhead:
    """The kernels of steps, compiled by other processes while this one goes on.

    Args:
        run: goes through the steps on the meta device, in a process of its own.
        identity: of the steps: equal if they launch the same kernels.
        arch: compute capability of the GPU, 90 for sm_90.
    """

    def __init__(self, run: Callable[[], None], identity: str, arch: int) -> None:
        """Looks what there is, and begins to compile what is missing."""
        self._num_cached: int | None = 0
        self._forked: Forked[KernelReport] | None = None
        try:
            kernels = _KernelList(identity, arch)
            self._num_cached = kernels.num_cached()
        except OSError as error:  # a cache that can only be read may have what is launched
            _logger.warning("kernels are compiled when they are first needed: %s", error)
        if self._num_cached is None:
            self._forked = Forked(partial(_compile_all, run, kernels, arch))
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
            "looking for kernels to compile, on %d cores, into %s; later starts find them there",
            num_cores(),
            triton.knobs.cache.dir,
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


class _KernelList:
    """The kernels of an executor that an earlier start has found, in a file of Triton's cache."""

    def __init__(self, identity: str, arch: int) -> None:
        parts = (identity, arch, triton.__version__, torch.__version__, _LIST)
        name = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
        self._folder = get_cache_manager(name)

    def num_cached(self) -> int | None:
        """How many there are, if the cache has every one of them; a damaged list counts as none."""
        path = self._folder.get_file(_LIST)
        if path is None:
            return None
        try:
            kernels: list[tuple[str, str]] = json.loads(Path(path).read_bytes())
            has_all = isinstance(kernels, list) and all(is_cached(*each) for each in kernels)
        except (TypeError, ValueError):  # no JSON, or no list of names and digests
            return None
        return len(kernels) if has_all else None

    def write(self, builds: Sequence[KernelBuild]) -> None:
        """Remembers them."""
        text = json.dumps([(build.name, build.digest) for build in builds])
        self._folder.put(text, _LIST, binary=False)


def _compile_all(run: Callable[[], None], kernels: _KernelList, arch: int) -> KernelReport:
    """Compiles what `run` launches as soon as it is noted."""
    begun = time.perf_counter()
    # Of a process that is to start: what it has to say is said there.
    logging.disable()
    torch.set_num_threads(1)
    leave_out_compiler()
    jobs: ForkedJobs[str | None] = ForkedJobs(num_cores())
    builds: list[KernelBuild] = []
    missing: list[KernelBuild] = []

    def note(build: KernelBuild) -> None:
        builds.append(build)
        if not build.is_cached:
            missing.append(build)
            jobs.add(build.build)

    failed: list[str] = []
    with noted_launches(arch, note):
        try:
            run()
        except Exception as error:  # what is not noted is compiled when it is needed
            failed.append(f"not every step can be tried: {type(error).__name__}: {error}")
    for build, reason in zip(missing, jobs.results(), strict=True):
        if isinstance(reason, ChildProcessError):  # the compiler has crashed, or had no memory
            reason = f"{build.name}: {reason}"
        if reason is not None:
            failed.append(reason)
    if not failed:
        kernels.write(builds)
    return KernelReport(
        num_kernels=len(builds),
        num_compiled=len(missing),
        failed=tuple(failed),
        seconds=time.perf_counter() - begun,
    )
