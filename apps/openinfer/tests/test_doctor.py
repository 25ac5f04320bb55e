import json

import pytest
import torch

from openinfer.commands._doctor import doctor
from openinfer_contract import PluginGroup


def test_the_report_of_the_built_in_model(capsys):
    assert doctor(None) == 0
    out = capsys.readouterr().out
    for word in ("machine", "torch", "openinfer 0.", "model lines: qwen3", "checkpoints: tiny"):
        assert word in out
    assert "model tiny\n  qwen3: serves it" in out
    assert "kernels on cpu" in out


def test_a_model_that_nobody_serves_says_why(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["Other"]}))
    assert doctor(str(tmp_path)) == 1
    assert "qwen3: no, " in capsys.readouterr().out


@pytest.mark.parametrize("name", ["nothing", "some/thing"])
def test_a_model_that_is_nowhere_says_so(name, capsys):
    assert doctor(name) == 1
    assert f"no model '{name}'" in capsys.readouterr().out


def test_without_the_built_in_model_and_without_lines(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(
        "openinfer.commands._doctor.CHECKPOINTS", PluginGroup("no.group", "checkpoint", str)
    )
    assert doctor(None) == 1
    assert "pip install openinfer-tiny" in capsys.readouterr().out
    monkeypatch.setattr("openinfer.commands._doctor.installed_lines", dict)
    (tmp_path / "config.json").write_text("{}")
    assert doctor(str(tmp_path)) == 1
    assert "pip install openinfer-qwen3" in capsys.readouterr().out


@pytest.mark.parametrize("is_compiled", [False, True])
def test_a_torch_that_every_start_compiles_is_told(monkeypatch, tmp_path, capsys, is_compiled):
    cached = tmp_path / "torch.pyc"
    if is_compiled:
        cached.touch()
    monkeypatch.setattr(torch.__spec__, "cached", str(cached))
    doctor(None)
    assert ("python -m compileall -q" in capsys.readouterr().out) is not is_compiled
