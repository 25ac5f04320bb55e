import pytest

from openinfer_engine import EngineOptions, LaunchSpec, StepFailed
from openinfer_qwen3 import LINE
from openinfer_qwen3.model import Qwen3Model


@pytest.fixture
def launch(checkpoint):
    def run(**options):
        options = {"device": "cpu", "num_threads": 1, "max_num_seqs": 2} | options
        spec = LaunchSpec(
            model_path=str(checkpoint()), model_line="qwen3", engine=EngineOptions(**options)
        )
        return LINE.launch(spec)

    return run


def test_a_prefill_and_a_decode_are_run_before_ready(launch, monkeypatch):
    forward, seen = Qwen3Model.forward, []

    def watched(self, inputs, cache):
        seen.append((inputs.positions.tolist(), inputs.max_seqlen_k))
        return forward(self, inputs, cache)

    monkeypatch.setattr(Qwen3Model, "forward", watched)
    launch(block_size=1)
    assert seen == [([0, 1], 2), ([2], 3)]


def test_a_model_that_does_not_run_does_not_start(launch, monkeypatch):
    def broken(self, inputs, cache):
        raise RuntimeError("shape")

    monkeypatch.setattr(Qwen3Model, "forward", broken)
    with pytest.raises(StepFailed, match="RuntimeError"):
        launch()


def test_a_model_too_short_for_first_steps_starts(launch):
    assert launch(max_model_len=2).info.max_model_len == 2
