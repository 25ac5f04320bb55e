import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import openinfer_tiny


def test_all_names_exist():
    assert openinfer_tiny.__all__ == ["CHECKPOINT", "Checkpoint"]
    assert all(hasattr(openinfer_tiny, name) for name in openinfer_tiny.__all__)


def test_the_entry_point_is_the_checkpoint():
    (found,) = entry_points(group="openinfer.checkpoints", name="tiny")
    assert found.load() is openinfer_tiny.CHECKPOINT


def test_import_needs_the_standard_library_only():
    code = (
        "import sys, openinfer_tiny\n"
        "roots = {name.partition('.')[0] for name in sys.modules}\n"
        "print(*sorted(roots - sys.stdlib_module_names - {'openinfer_tiny', '__main__'}))"
    )
    run = subprocess.run(
        [sys.executable, "-S", "-c", code],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(Path(openinfer_tiny.__file__).parents[1])},
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == []
