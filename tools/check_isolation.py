"""Runs every member's tests with only its declared dependencies installed, and measures coverage.

A package that imports an undeclared sibling passes in the shared environment and fails here. The
tests run with `--quick`: every test module is imported and nearly every test function is called.
More cases of a function add nothing here, and the run in the shared environment has them all.

Coverage counts the lines of a member's source that the member's own quick tests run in their own
process. Tests marked `timed` are not traced. The last line is the total over the members.

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

import coverage
from check_repo import ROOT, members

_AT_A_TIME = 3
"""Members tested at a time. Three suit two cores: an engine's tests wait more than they compute."""


class Coverage:
    """Coverage data of the members, and the package that collects it.

    The package is no dependency of the members. A folder that holds nothing but a link to this
    environment's copy makes it importable in theirs.
    """

    def __init__(self, folder: Path) -> None:
        (folder / "path").mkdir()
        (folder / "path" / "coverage").symlink_to(Path(coverage.__file__).parent)
        self._folder = folder

    def environment(self, name: str) -> dict[str, str]:
        """Returns the variables under which a member's tests run."""
        # Before Python 3.12 there is no sys.monitoring, which costs less than a trace function.
        core = {"COVERAGE_CORE": "sysmon"} if sys.version_info >= (3, 12) else {}
        return {"PYTHONPATH": str(self._folder / "path"), "COVERAGE_FILE": self._file(name), **core}

    def percent(self, *names: str) -> float:
        """Returns the share of lines that the tests of these members ran, in percent."""
        total = str(self._folder / "total")
        files = [self._file(name) for name in names]
        self._run("combine", "--keep", "-q", "--data-file", total, *files)
        return float(self._run("report", "--data-file", total, "--format=total", "--precision=1"))

    def _file(self, name: str) -> str:
        return str(self._folder / f"{name}.coverage")

    def _run(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "coverage", *arguments]
        done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
        return done.stdout


def needs_torch(name: str) -> bool:
    export = ["uv", "export", "-q", "--frozen", "--package", name, "--no-hashes"]
    done = subprocess.run(export, cwd=ROOT, check=True, capture_output=True, text=True)
    return "\ntorch==" in done.stdout


def run_one(name: str, environment: Path, measured: Coverage) -> bool:
    begun = time.monotonic()
    folder = members()[name]
    # `--exact` removes what the environment held for the package before and this one does not
    # declare. Dependencies of both keep the bytecode that their first import has compiled.
    command = ["uv", "run", "--frozen", "--exact", "--package", name, "python", "-P"]
    command += ["-m", "coverage", "run", f"--source={folder / 'src'}"]
    command += ["-m", "pytest", "--quick", str(folder / "tests")]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={
            **os.environ,
            "VIRTUAL_ENV": "",
            "UV_PROJECT_ENVIRONMENT": str(environment),
            **measured.environment(name),
        },
        capture_output=True,
        text=True,
    )
    summary = (done.stdout.strip().splitlines() or ["no output"])[-1]
    print(f"{name:24} {time.monotonic() - begun:6.1f} s  {summary}", flush=True)
    if done.returncode != 0:
        print(done.stdout, done.stderr, sep="\n", flush=True)
    return done.returncode == 0


def main(names: list[str]) -> int:
    # Members that need torch go first, so that an environment loses torch only once. Among them,
    # and among the others, the ones with the most tests go first.
    folders = members()
    size = {name: sum(f.stat().st_size for f in folders[name].rglob("test_*.py")) for name in names}
    names = sorted(names, key=lambda name: (not needs_torch(name), -size[name]))
    with tempfile.TemporaryDirectory() as folder:
        measured = Coverage(Path(folder))
        free: SimpleQueue[Path] = SimpleQueue()
        for number in range(_AT_A_TIME):
            free.put(Path(folder, str(number)))

        def run(name: str) -> bool:
            environment = free.get()
            try:
                return run_one(name, environment, measured)
            finally:
                free.put(environment)

        with ThreadPoolExecutor(max_workers=_AT_A_TIME) as pool:
            passed = list(pool.map(run, names))
        failed = [name for name, is_good in zip(names, passed, strict=True) if not is_good]
        if failed:
            print(f"failed alone: {', '.join(failed)}")
            return 1
        for name in sorted(names):
            print(f"{name:24} {measured.percent(name):6.1f} % of lines covered by its quick tests")
        print(f"{len(names)} members pass alone; line coverage: {measured.percent(*names):.1f} %")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or list(members())))
