"""What every test run of this repository shares."""

import os

# Before torch is imported. The shapes of the tests are too small to gain from a second thread, and
# threads that spin for one another cost ten times the run on a machine that does something else.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Without bytecode on disk each of the servers that are started would compile torch anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds --quick."""
    parser.addoption(
        "--quick",
        action="store_true",
        help="of every test function the first and the last case, of long ones only what a module "
        "would else have none of",
    )


# Last: among the cases that the markers and keywords of the command line leave.
@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves what --quick runs."""
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
