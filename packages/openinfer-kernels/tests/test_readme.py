"""The README's examples run, and its back end is found, chosen and right."""

import re
from pathlib import Path

import pytest
import torch

from openinfer_kernels import RMSNormSpec, describe, plan_rms_norm
from openinfer_kernels.dispatch import _ops, find_op

_README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
_PYTHON = re.findall(r"^```python\n(.*?)^```$", _README, re.MULTILINE | re.DOTALL)
_TOML = re.findall(r"^```toml\n(.*?)^```$", _README, re.MULTILINE | re.DOTALL)


@pytest.fixture
def my_kernels(tmp_path, monkeypatch):
    """Installs the package of the README as pip would."""
    package, info = tmp_path / "my_kernels", tmp_path / "my_kernels-1.0.dist-info"
    package.mkdir()
    info.mkdir()
    (package / "__init__.py").touch()
    (package / "short_norm.py").write_text(_PYTHON[1])
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-kernels\nVersion: 1.0\n")
    (point,) = re.findall(r'^"(.*)" = "(.*)"$', _TOML[0], re.MULTILINE)
    (info / "entry_points.txt").write_text(f"[openinfer.kernels]\n{' = '.join(point)}\n")
    monkeypatch.syspath_prepend(tmp_path)
    for lookup in (find_op, _ops._installed_names):
        lookup.cache_clear()
    yield
    for lookup in (find_op, _ops._installed_names):
        lookup.cache_clear()


def test_the_first_example_runs():
    names = {}
    exec(_PYTHON[0], names)
    assert names["y"].shape == (3, 64)


def test_a_back_end_is_added_as_the_readme_says(my_kernels, random):
    spec = RMSNormSpec(hidden_size=64, eps=1e-6, dtype=torch.float32)
    (report,) = (r for r in describe("cpu", {"rms_norm": spec}) if r.op == "rms_norm")
    assert report.backend == "short"
    x, weight = random(3, 64), random(64)
    norm = plan_rms_norm(spec, "cpu")
    assert norm.__module__ == "my_kernels.short_norm"
    torch.testing.assert_close(norm(x, weight), plan_rms_norm(spec, "cpu", "reference")(x, weight))
    wide = RMSNormSpec(hidden_size=128, eps=1e-6, dtype=torch.float32)
    assert plan_rms_norm(wide, "cpu").__module__.endswith("_torch")
