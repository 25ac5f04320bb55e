"""Cores and memory that this process may use, container limits included."""

import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_TOPOLOGY = Path("/sys/devices/system/cpu")


def physical_cores() -> int:
    """Returns the number of cores this process may run on; hardware threads of one core count once.

    A forward pass gains nothing from a core's second thread. A container's CPU quota is an upper
    bound, too, because threads beyond it only wait for each other.
    """
    try:
        allowed = os.sched_getaffinity(0)
    except AttributeError:  # macOS has no affinity
        return os.cpu_count() or 1
    cores = {_siblings(cpu) for cpu in allowed}
    quota = _cpu_quota()
    return max(1, len(cores) if quota is None else min(len(cores), quota))


def host_memory_bytes() -> int:
    """Returns the memory of this machine, or the container's limit if that is smaller."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _read(_CGROUP / "memory.max")
    return min(physical, int(limit)) if limit is not None and limit.isdigit() else physical


def _siblings(cpu: int) -> str:
    return _read(_TOPOLOGY / f"cpu{cpu}/topology/thread_siblings_list") or str(cpu)


def _cpu_quota() -> int | None:
    """Returns the whole cores of cgroup v2's `cpu.max` ("quota period" in us); None: no quota."""
    words = (_read(_CGROUP / "cpu.max") or "max").split()
    if len(words) != 2 or not words[0].isdigit():
        return None
    return int(words[0]) // int(words[1])


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
