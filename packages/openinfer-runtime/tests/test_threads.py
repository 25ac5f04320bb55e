from openinfer_runtime import useful_threads
from openinfer_runtime.startup import _threads


def test_a_small_model_keeps_to_one_core(monkeypatch):
    monkeypatch.setattr(_threads, "physical_cores", lambda: 8)
    assert useful_threads(8 << 20) == 1
    assert useful_threads(1 << 30) == 8
