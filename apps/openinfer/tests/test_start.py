"""The start of a command: the order of its imports, and Ctrl-C during them."""

import os
import signal
import subprocess
import sys
import time
import uuid
from importlib.util import find_spec

import psutil
import pytest

# Sends Ctrl-C when the import of a module begins.
_INTERRUPTED = """
import os, signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == WHERE:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
sys.argv = ["openinfer", *ARGUMENTS]
from openinfer.__main__ import main
sys.exit(main())
"""
_SERVE = ("serve", "--port", "0", "--device", "cpu")


@pytest.mark.parametrize(
    ("where", "arguments"),
    [
        ("openinfer.commands._cli", _SERVE),
        ("numpy", ("complete", "x")),
        ("openinfer.serve._serve", _SERVE),
        # The engine process is running at this point.
        ("openinfer_frontend", _SERVE),
        ("uvicorn", _SERVE),
        ("openinfer.terminal._chat", ("chat",)),
        ("torch._C", ("chat",)),
        pytest.param(
            "openinfer_sim._run",
            ("sim", "--model", "qwen3-0_6b", "--requests", "1"),
            marks=pytest.mark.skipif(
                find_spec("openinfer_sim") is None,
                reason="a command of another package, which is not installed",
            ),
        ),
    ],
)
def test_ctrl_c_ends_it_without_a_word_and_without_a_trace(where, arguments):
    mark = f"OPENINFER_TEST_{uuid.uuid4().hex}"
    code = _INTERRUPTED.replace("WHERE", repr(where)).replace("ARGUMENTS", repr(arguments))
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
        env={**os.environ, mark: "1"},
        check=False,
    )
    assert done.returncode == 130, done.stderr
    assert done.stdout == ""
    assert all("INFO" in line for line in done.stderr.splitlines())
    deadline = time.monotonic() + 5
    while left := [one for one in psutil.process_iter() if mark in _environment(one)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def _environment(process):
    try:
        return process.environ()
    except psutil.Error:
        return {}


def test_an_interrupt_that_is_ignored_stays_ignored():
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "from openinfer._interrupts import leave_on_interrupt, raise_interrupts\n"
        "leave_on_interrupt(); raise_interrupts(); signal.raise_signal(signal.SIGINT)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_interrupt_in_the_middle_of_a_dataclass_ends_with_our_status(tmp_path):
    program = tmp_path / "interrupted.py"
    program.write_text(
        "import sys, openinfer.commands._cli\n"
        "from openinfer.__main__ import main\n"
        "def run():\n"
        "    openinfer.commands._cli.raise_interrupts()\n"
        "    try: exec('import signal; signal.raise_signal(signal.SIGINT)')\n"
        "    except KeyboardInterrupt: return 130\n"
        "openinfer.commands._cli.main = run\n"
        "sys.exit(main())\n"
    )
    ended = subprocess.run([sys.executable, "-m", program.stem], cwd=tmp_path, check=False)
    assert ended.returncode == 130


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize(("is_served", "status"), [(True, 0), (False, None)])
def test_at_the_end_the_rest_of_a_servers_signal_is_nothing(number, is_served, status):
    code = (
        "import signal; from openinfer._interrupts import end_quietly, leave_on_interrupt\n"
        f"leave_on_interrupt(); number = signal.{number}\n"
        f"if {is_served}: signal.signal(number, lambda *_: None)\n"
        "end_quietly()\n"
        "import atexit; atexit.register(lambda: signal.raise_signal(number))\n"
        # At this point Python has removed its signal handlers.
        "class Last:\n"
        "    def __del__(self, kill=__import__('os').kill, me=__import__('os').getpid()):\n"
        "        kill(me, number)\n"
        "last = Last()\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], check=False)
    ends = {"SIGINT": 130, "SIGTERM": -signal.SIGTERM}
    assert ended.returncode == (ends[number] if status is None else status)


@pytest.mark.parametrize(
    ("code", "late"),
    [
        ("import openinfer.__main__", ("openinfer_contract", "numpy", "openinfer.commands._cli")),
        # Modules that `serve` needs before the engine process can start.
        (
            "import openinfer.commands._cli as c, openinfer.serve._serve as s\n"
            "p = c._parser(with_others=False)\n"
            "s.prepare(s._settings(c._parse(p, ['serve'])[0])[1].get('model'), {})",
            ("openinfer_frontend", "openinfer_text", "pydantic", "openinfer_sim"),
        ),
    ],
)
def test_what_can_be_imported_later_is(code, late):
    program = f"{code}\nimport sys\nprint([m for m in {late} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
