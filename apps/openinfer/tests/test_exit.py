"""Scripts that forget to close what they opened."""

import subprocess
import sys

import pytest


@pytest.mark.long
@pytest.mark.parametrize(
    ("last", "status"), [("", 0), ("raise SystemExit(3)", 3), ("raise KeyError", 1)]
)
def test_a_script_that_ends_in_the_middle_of_a_stream(last, status):
    code = (
        "from openinfer import LLM\n"
        "pieces = LLM().stream('Once upon a time')\n"
        "print(next(pieces))\n"
        f"{last}\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == status, done.stderr
    assert "terminate called" not in done.stderr
