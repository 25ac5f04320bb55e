"""`serve --quantization` and `LLM(quantization=...)` with a real model."""

import pytest

from openinfer import LLM, SamplingParams
from openinfer_kernels import describe


def _without(quantization):
    (report,) = (r for r in describe("cpu") if r.op == f"linear {quantization}")
    return report.backend is None


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_a_server_keeps_weights_in_fewer_bits(quantization, start_server):
    if _without(quantization):
        pytest.skip("no backend multiplies these weights here")
    server = start_server("--device", "cpu", "-q", quantization)
    rows = [line.split()[:2] for line in server.log if line.startswith("  weights")]
    assert rows == [["weights", f"({quantization})"]]
    body = {"model": "tiny", "prompt": "Hello", "max_tokens": 8, "temperature": 0}
    answers = [server.post("/v1/completions", body) for _ in range(2)]
    assert [status for status, _ in answers] == [200, 200]
    texts = {answer["choices"][0]["text"] for _, answer in answers}
    assert len(texts) == 1
    assert texts != {""}


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_an_llm_keeps_weights_in_fewer_bits(quantization):
    if _without(quantization):
        pytest.skip("no backend multiplies these weights here")
    with LLM(device="cpu", quantization=quantization, num_threads=1) as llm:
        (completion,) = llm.generate(
            ["Hello"], SamplingParams(max_tokens=4, temperature=0), has_progress_bar=False
        )
    assert completion.text
