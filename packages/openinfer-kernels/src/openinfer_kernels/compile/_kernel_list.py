"""The kernels of an executor compiled by processes, and the list that the next start looks at.

It imports Triton, which there is not on every system: `CompileAhead` imports it when it is used.
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

from openinfer_kernels.compile._builds import KernelBuild, is_cached, noted_launches
from openinfer_kernels.compile._forked import ForkedJobs
from openinfer_kernels.compile._kernel_report import KernelReport
from openinfer_kernels.compile._untraced import leave_out_compiler

_LIST = "kernels.json"


class KernelList:
    """The kernels of an executor that an earlier start has found, in a file of Triton's cache."""

    def __init__(self, identity: str, arch: int) -> None:
        versions = triton.__version__, torch.__version__
        parts = (identity, arch, *versions, _environment(), _LIST)
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


def _environment() -> dict[str, str]:
    """What the environment tells Triton, but for where its files are: kernels may change with it.

    More variables than those that do: one that does not costs a look for kernels, no compiling.
    """
    told = {name: value for name, value in os.environ.items() if name.startswith("TRITON_")}
    told = {name: value for name, value in told.items() if not name.endswith(("_DIR", "_HOME"))}
    return dict(sorted({**told, **get_cache_invalidating_env_vars()}.items()))


def compile_all(
    run: Callable[[], None], kernels: KernelList, arch: int, num_compilers: int
) -> KernelReport:
    """Compiles what `run` launches as soon as it is noted, so many at a time."""
    begun = time.perf_counter()
    # Of a process that is to start: what it has to say is said there.
    logging.disable()
    torch.set_num_threads(1)
    leave_out_compiler()
    jobs: ForkedJobs[str | None] = ForkedJobs(num_compilers)
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
