"""score_tokens: every back end against the definition, and the definition by hand."""

import math

import numpy as np
import pytest
import torch

from openinfer_kernels import ScoreTokensSpec, plan_score_tokens

BACKENDS = ("torch", "triton")
NONE = np.zeros((1, 0), np.int64)


def score(backend, device, scores, token_ids, rows, num_top, by_id):
    spec = ScoreTokensSpec(vocab_size=scores.shape[1], max_rows=8)
    op = plan_score_tokens(spec, device, backend)
    tokens = torch.tensor(token_ids, dtype=torch.int32, device=device)
    for _ in range(2):  # the second call finds clean scratch memory
        packed = op(scores.to(device), tokens, np.array(rows), num_top, by_id).cpu()
    floats = packed.view(torch.float32)
    top, ids = 2 + num_top, 2 + 2 * num_top
    return {
        "ranks": packed[:, 0].tolist(),
        "logprobs": floats[:, 1],
        "top_ids": packed[:, 2:top].tolist(),
        "top": floats[:, top:ids],
        "by_id": floats[:, ids:],
    }


@pytest.fixture(params=("reference", *BACKENDS))
def run(request, triton_device):
    device = triton_device if request.param == "triton" else "cpu"
    return lambda *arguments: score(request.param, device, *arguments)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("vocab_size", "num_top", "num_ids"), [(320, 5, 3), (9001, 20, 200)])
def test_against_the_definition(run, dtype, vocab_size, num_top, num_ids):
    generator = torch.Generator().manual_seed(vocab_size)
    scores = (torch.randn(6, vocab_size, generator=generator) * 3).to(dtype)
    scores[4, 7:] = -math.inf
    rows, rng = [5, 0, 4], np.random.default_rng(1)
    asked = (scores, [0, 1, 2, 3, 4, 5], rows, num_top, rng.integers(0, vocab_size, (3, num_ids)))
    got, expected = run(*asked), score("reference", "cpu", *asked)
    assert got["ranks"] == expected["ranks"]
    assert got["top_ids"] == expected["top_ids"]
    for column in ("logprobs", "top", "by_id"):
        torch.testing.assert_close(got[column], expected[column], atol=2e-5, rtol=1e-5)


def test_equals_come_by_lowest_id_and_rank_alike(run):
    scores = torch.full((1, 5000), -1.0)
    scores[0, [4999, 4100, 10]] = 2.0
    scores[0, [3, 1, 2]] = torch.tensor([0.0, -0.0, 0.0])
    got = run(scores, [4100], [0], 8, NONE)
    assert got["top_ids"] == [[10, 4100, 4999, 1, 2, 3, 0, 4]]
    assert got["ranks"] == [1]
    mass = math.log(3 * math.e**2 + 3 + 4994 / math.e)
    assert got["logprobs"].tolist() == pytest.approx([2 - mass])
    assert run(scores, [2], [0], 0, NONE)["ranks"] == [4]


def test_more_of_them_than_a_kernel_holds(run):
    scores = torch.arange(60.0).unsqueeze(0)
    assert run(scores, [3], [0], 50, NONE)["top_ids"] == [[*range(59, 9, -1)]]


def test_what_is_ruled_out_has_no_probability(run):
    scores = torch.full((2, 300), -math.inf)
    scores[1, [8, 5]] = 1.0
    got = run(scores, [0, 8], [1], 4, np.array([[5, 6]]))
    assert got["top_ids"] == [[5, 8, 0, 1]]
    half = -math.log(2)
    assert got["top"][0].tolist() == pytest.approx([half, half, -math.inf, -math.inf])
    assert got["by_id"][0].tolist() == pytest.approx([half, -math.inf])
