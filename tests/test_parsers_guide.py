"""The guide to custom parsers, followed step by step in an empty folder."""

import os
import shutil
import subprocess
import sys

import pytest


@pytest.fixture(scope="module")
def guide(follow_guide, tmp_path_factory):
    """The package that the guide develops."""
    return follow_guide("parsers", tmp_path_factory.mktemp("at-parser"))


# The outer run's options may belong to a plugin that is not installed there.
_PLAIN_PYTEST = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
"""Readers have none of our plugins, and importing those takes longer than all these tests."""


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


def test_its_tests_pass_and_can_fail(guide):
    folder = guide.folder
    assert set(guide.files) == {"pyproject.toml", "at_parser/__init__.py", "test_at_parser.py"}
    done = _python(folder, "-m", "pytest", "test_at_parser.py", **_PLAIN_PYTEST)
    assert done.returncode == 0, done.stdout
    assert "6 passed" in done.stdout
    broken = folder / "broken"
    shutil.copytree(folder / "at_parser", broken / "at_parser")
    shutil.copy(folder / "test_at_parser.py", broken)
    source = broken / "at_parser/__init__.py"
    source.write_text(source.read_text().replace("self._beginning(END)", "len(self._text)"))
    done = _python(broken, "-m", "pytest", "test_at_parser.py", **_PLAIN_PYTEST)
    assert done.returncode == 1
    assert "result_is_independent_of_chunking" in done.stdout


def test_once_installed_it_is_taken_by_name_and_by_claim(guide):
    code = (
        "from openinfer_text import choose_parser as choose\n"
        "print(choose('tool', 'at', None).name, choose('tool', 'auto', 'Write @@call').name)"
    )
    site = str(guide.site)
    assert _python(guide.folder, "-c", code, PYTHONPATH=site).stdout == "at at\n"
    assert "not installed" in _python(guide.site, "-P", "-c", code, PYTHONPATH="").stderr
