"""Settings for every test run of this repository, and `--quick`."""

import os
import signal
import sys
import threading
from collections.abc import Generator

# Set before torch is imported. The shapes of the tests are too small to gain from a second thread,
# and spinning threads make the run ten times as long on a machine with other load.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Without bytecode on disk, each server that a test starts would compile torch's modules again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# A shell without job control starts background jobs with SIGINT ignored, and every child process
# inherits that: the tests that send Ctrl-C to a server would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds --quick."""
    parser.addoption(
        "--quick",
        action="store_true",
        help="run the first and the last case of each test function; run a long one only if its "
        "module has no other test",
    )


# Runs last, so that it chooses among the cases that the command line's markers and keywords select.
@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects the cases that `--quick` does not run."""
    if not config.getoption("--quick"):
        return
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        cases.setdefault(item.nodeid.split("[")[0], []).append(item)
    ends = {end for found in cases.values() for end in (found[0], found[-1])}
    brief = {item for item in ends if item.get_closest_marker("long") is None}
    modules = {item.nodeid.split("::")[0] for item in brief}
    for item in items:
        if (module := item.nodeid.split("::")[0]) not in modules:
            modules.add(module)
            brief.add(item)
    kept, left = [], []
    for item in items:
        is_kept = item in brief
        (kept if is_kept else left).append(item)
    config.hook.pytest_deselected(items=left)
    items[:] = kept


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Turns tracing off in tests marked `timed`: it makes Python code up to twice as slow."""
    trace, trace_of_threads = sys.gettrace(), threading.gettrace()
    if trace is None or item.get_closest_marker("timed") is None:
        return (yield)
    sys.settrace(None)
    threading.settrace(None)
    try:
        return (yield)
    finally:
        sys.settrace(trace)
        threading.settrace(trace_of_threads)
