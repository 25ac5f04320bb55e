from openinfer_runtime import _threads, useful_threads


def test_a_small_model_keeps_to_one_core(monkeypatch):
    monkeypatch.setattr(_threads, "physical_cores", lambda: 8)
    assert useful_threads(8 << 20) == 1
    assert useful_threads(1 << 30) == 8
