"""Runs every member's tests with only its declared dependencies installed.

A package that imports an undeclared sibling passes in the shared environment and fails here.
Two run at a time: an engine's tests wait more than they compute.

    check_isolation.py [PACKAGE ...]
"""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from check_repo import ROOT, members


def run_one(name: str) -> bool:
    begun = time.monotonic()
    tests = members()[name] / "tests"
    done = subprocess.run(
        ["uv", "run", "--frozen", "--isolated", "--package", name, "pytest", str(tests)],
        cwd=ROOT,
        env={**os.environ, "VIRTUAL_ENV": ""},
        capture_output=True,
        text=True,
    )
    summary = (done.stdout.strip().splitlines() or ["no output"])[-1]
    print(f"{name:24} {time.monotonic() - begun:6.1f} s  {summary}", flush=True)
    if done.returncode != 0:
        print(done.stdout[-6000:], done.stderr[-3000:], sep="\n", flush=True)
    return done.returncode == 0


if __name__ == "__main__":
    chosen = sys.argv[1:] or list(members())
    with ThreadPoolExecutor(max_workers=2) as pool:
        passed = list(pool.map(run_one, chosen))
    failed = [name for name, is_good in zip(chosen, passed, strict=True) if not is_good]
    print(f"failed alone: {', '.join(failed)}" if failed else f"{len(chosen)} members pass alone")
    sys.exit(bool(failed))
