import math

import numpy as np
import pytest
import torch

from openinfer_kernels.ops.sample._filter import filter_


def reference(scores, top_k, top_p, min_p):
    """Returns the kept ids of one row, computed in float64, with ties of the last one."""
    scores = np.asarray(scores, np.float64)
    kept = scores >= (np.sort(scores)[::-1][top_k - 1] if top_k else -np.inf)
    kept &= np.exp(scores - scores.max()) >= min_p
    weights = np.where(kept, np.exp(scores - scores.max()), 0.0)
    probabilities = weights / weights.sum()
    if top_p < 1.0:
        order = np.argsort(-probabilities, kind="stable")
        before = np.cumsum(probabilities[order]) - probabilities[order]
        last = order[before < top_p][-1]
        kept &= probabilities >= probabilities[last]
    return kept


def run(scores, rows):
    scores = scores.clone()
    vocab_size = scores.shape[1]
    filter_(
        scores,
        torch.tensor([k or vocab_size for k, _, _ in rows]),
        torch.tensor([p for _, p, _ in rows], dtype=torch.float64),
        torch.tensor([math.log(m) if m else -math.inf for *_, m in rows], dtype=torch.float64),
        max((k for k, _, _ in rows if k), default=0),
        any(p < 1 for _, p, _ in rows),
    )
    return scores


ROWS = [
    (None, 1.0, 0.0),
    (5, 1.0, 0.0),
    (None, 0.9, 0.0),
    (None, 0.3, 0.0),
    (None, 1.0, 0.05),
    (7, 0.8, 0.0),
    (40, 0.95, 0.02),
    (None, 0.9, 0.2),
    (1, 1e-9, 1.0),
    (None, 1e-9, 0.0),
]


@pytest.mark.parametrize("spread", [0.01, 1.0, 6.0])
@pytest.mark.parametrize("vocab_size", [64, 3000])
def test_all_at_once_against_float64(spread, vocab_size):
    torch.manual_seed(0)
    scores = torch.randn(len(ROWS), vocab_size) * spread
    kept = run(scores, ROWS)
    for row, parameters in enumerate(ROWS):
        expected = reference(scores[row], *parameters)
        assert (kept[row].isfinite().numpy() == expected).all(), parameters
        assert torch.equal(kept[row][expected], scores[row][expected])


@pytest.mark.parametrize("parameters", ROWS)
def test_one_at_a_time(parameters):
    torch.manual_seed(1)
    scores = torch.randn(1, 3000)
    expected = reference(scores[0], *parameters)
    assert (run(scores, [parameters])[0].isfinite().numpy() == expected).all()


def test_ties_with_the_last_one_kept_are_kept():
    scores = torch.tensor([[1.0, 2.0, 1.0, 3.0, 1.0, 0.0]])
    assert run(scores, [(3, 1.0, 0.0)])[0].isfinite().tolist() == [True] * 5 + [False]
    assert run(scores, [(None, 0.9, 0.0)])[0].isfinite().tolist() == [True] * 5 + [False]


def test_top_k_above_what_is_not_ruled_out_keeps_all_of_it():
    scores = torch.tensor([[1.0, -math.inf, 0.0, -math.inf]])
    assert run(scores, [(3, 0.99, 0.0)])[0].isfinite().tolist() == [True, False, True, False]


def test_nan_is_left_for_the_draw_to_find():
    scores = torch.tensor([[1.0, math.nan, 0.0, 2.0], [1.0, 2.0, 3.0, 4.0]])
    for parameters in ((2, 1.0, 0.0), (None, 0.5, 0.0), (None, 1.0, 0.5)):
        assert run(scores, [parameters, (2, 1.0, 0.0)])[0].isnan().any()
