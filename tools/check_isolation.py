"""Runs every member's tests with only its declared dependencies installed.

A package that imports an undeclared sibling passes in the shared environment and fails here. Every
test module is imported and nearly every test function is called; with `--quick`, because what more
cases of it find is found in the shared environment, too.

    check_isolation.py [PACKAGE ...]
"""

import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from check_repo import ROOT, members

_AT_A_TIME = 3
"""On two cores: an engine's tests wait more than they compute."""


def needs_torch(name: str) -> bool:
    export = ["uv", "export", "-q", "--frozen", "--package", name, "--no-hashes"]
    done = subprocess.run(export, cwd=ROOT, check=True, capture_output=True, text=True)
    return "\ntorch==" in done.stdout


def run_one(name: str, environment: Path) -> bool:
    begun = time.monotonic()
    tests = members()[name] / "tests"
    # Exact: whatever the environment held for the package before that this one does not declare
    # is removed. What both have keeps the bytecode that its first import has compiled.
    done = subprocess.run(
        ["uv", "run", "--frozen", "--exact", "--package", name, "pytest", "--quick", str(tests)],
        cwd=ROOT,
        env={**os.environ, "VIRTUAL_ENV": "", "UV_PROJECT_ENVIRONMENT": str(environment)},
        capture_output=True,
        text=True,
    )
    summary = (done.stdout.strip().splitlines() or ["no output"])[-1]
    print(f"{name:24} {time.monotonic() - begun:6.1f} s  {summary}", flush=True)
    if done.returncode != 0:
        print(done.stdout, done.stderr, sep="\n", flush=True)
    return done.returncode == 0


def main(names: list[str]) -> int:
    # An environment loses torch but once, and the members with the most tests begin.
    folders = members()
    size = {name: sum(f.stat().st_size for f in folders[name].rglob("test_*.py")) for name in names}
    names = sorted(names, key=lambda name: (not needs_torch(name), -size[name]))
    with tempfile.TemporaryDirectory() as folder:
        free: SimpleQueue[Path] = SimpleQueue()
        for number in range(_AT_A_TIME):
            free.put(Path(folder, str(number)))

        def run(name: str) -> bool:
            environment = free.get()
            try:
                return run_one(name, environment)
            finally:
                free.put(environment)

        with ThreadPoolExecutor(max_workers=_AT_A_TIME) as pool:
            passed = list(pool.map(run, names))
    failed = [name for name, is_good in zip(names, passed, strict=True) if not is_good]
    print(f"failed alone: {', '.join(failed)}" if failed else f"{len(names)} members pass alone")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or list(members())))
