"""A package with broken entry points fails only the commands that use it."""

import pytest

from openinfer import LLM
from openinfer.commands._cli import main
from openinfer.commands._doctor import doctor

_GROUPS = {
    "models": "model line",
    "checkpoints": "checkpoint",
    "schedulers": "scheduling policy",
    "engines": "engine",
    "commands": "command",
    "tool_parsers": "tool parser",
    "reasoning_parsers": "reasoning parser",
}


@pytest.fixture(autouse=True)
def _broken(tmp_path, monkeypatch):
    info = tmp_path / "plug-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plug\nVersion: 1.0\n")
    points = "".join(f"[openinfer.{group}]\nbroken = plug:NOPE\n" for group in _GROUPS)
    (info / "entry_points.txt").write_text(points)
    (tmp_path / "plug.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)


def _said(what):
    return f"the {what} broken of plug 1.0 cannot be loaded from plug:NOPE (AttributeError: "


def test_doctor_lists_them_and_goes_on(capsys):
    assert doctor(None) == 0
    out = capsys.readouterr().out
    assert all(f"broken: {_said(what)}" in out for what in _GROUPS.values())
    assert "model lines: qwen3\n" in out
    assert "qwen3: serves it" in out


def test_a_model_runs_beside_them():
    with LLM(max_num_seqs=1) as llm:
        (answer,) = llm.chat([{"role": "user", "content": "Hello!"}], has_progress_bar=False)
    assert answer.text


@pytest.mark.parametrize("arguments", [("--version",), ("--help",)])
def test_the_command_line_runs_beside_them(arguments, capsys, caplog):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 0
    assert "openinfer" in capsys.readouterr().out
    assert len(caplog.records) <= 1


@pytest.mark.parametrize(
    ("what", "arguments"),
    [
        ("command", ("broken",)),
        ("checkpoint", ("complete", "x", "--model", "broken")),
        ("model line", ("complete", "x", "--model-line", "broken")),
        ("scheduling policy", ("complete", "x", "--scheduling-policy", "broken")),
        ("engine", ("serve", "--engine", "broken")),
        ("tool parser", ("serve", "--tool-call-parser", "broken", "--port", "0")),
        ("reasoning parser", ("chat", "--reasoning-parser", "broken")),
    ],
)
def test_to_use_one_is_one_sentence(what, arguments, capsys):
    assert main(arguments) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"openinfer: {_said(what)}")
    assert err.count("\n") == 1
