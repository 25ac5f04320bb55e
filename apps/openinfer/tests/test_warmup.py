import pytest

from openinfer.commands._cli import main
from openinfer_runtime import TorchExecutor


def test_a_model_is_started_stepped_through_and_ended(capsys, monkeypatch):
    done = []
    monkeypatch.setattr(
        TorchExecutor, "prepare", lambda _, **__: len(done) < 3 and not done.append(1)
    )
    status = main(
        ("warmup", "tiny", "--device", "cpu", "--max-num-seqs", "2", "--num-threads", "1")
    )
    assert status == 0
    assert len(done) == 3
    out = capsys.readouterr().out
    assert out.startswith("tiny on cpu is warm after ")
    assert "kernels compiled here: " in out


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("nothing",), "no model 'nothing'"),
        (("--port", "1"), "--port"),
        (("tiny", "--max-model-len", "999999"), "max_model_len"),
    ],
)
def test_what_cannot_be_started_is_one_sentence(capsys, arguments, reason):
    assert main(("warmup", *arguments)) == 1
    assert reason in capsys.readouterr().err
