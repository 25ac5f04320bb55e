"""The guide to a parser of one's own, followed letter by letter in a folder of its own."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_GUIDE = (Path(__file__).parents[1] / "docs/guides/parsers.md").read_text(encoding="utf-8")
_BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", _GUIDE, re.MULTILINE | re.DOTALL)
_FILES = {match[1]: text for _, text in _BLOCKS if (match := re.match(r"# (\S+\.\w+)\n", text))}
_FOLDER = "site"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The guide's files, and beside them what its installation puts into an environment."""
    folder = tmp_path_factory.mktemp("at-parser")
    for name, text in _FILES.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    uv = shutil.which("uv")
    assert uv is not None, "the workspace is run by uv"
    install = [uv, "pip", "install", "--offline", "--no-deps", "--python", sys.executable]
    done = subprocess.run(
        [*install, "--target", str(folder / _FOLDER), str(folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return folder


def _python(folder, *arguments, **environment):
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


def test_its_tests_pass_and_can_fail(folder):
    assert set(_FILES) == {"pyproject.toml", "at_parser/__init__.py", "test_at_parser.py"}
    done = _python(folder, "-m", "pytest", "test_at_parser.py")
    assert done.returncode == 0, done.stdout
    assert "6 passed" in done.stdout
    broken = folder / "broken"
    shutil.copytree(folder / "at_parser", broken / "at_parser")
    shutil.copy(folder / "test_at_parser.py", broken)
    source = broken / "at_parser/__init__.py"
    source.write_text(source.read_text().replace("self._beginning(END)", "len(self._text)"))
    done = _python(broken, "-m", "pytest", "test_at_parser.py")
    assert done.returncode == 1
    assert "does_not_depend_on_cuts" in done.stdout


def test_once_installed_it_is_taken_by_name_and_by_claim(folder):
    code = (
        "from openinfer_text import choose_parser as choose\n"
        "print(choose('tool', 'at', None).name, choose('tool', 'auto', 'Write @@call').name)"
    )
    site = str(folder / _FOLDER)
    assert _python(folder, "-c", code, PYTHONPATH=site).stdout == "at at\n"
    assert "not installed" in _python(folder / _FOLDER, "-P", "-c", code, PYTHONPATH="").stderr
