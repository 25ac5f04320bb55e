import math

import pytest
import torch

from openinfer_contract import LogprobOptions, pack_ids
from openinfer_sampler import Sampler, unpack_scores


def reference(logits):
    return logits.double().log_softmax(dim=-1)


def test_sampled_rank_top_and_by_id_against_float64(draw, columns):
    torch.manual_seed(0)
    logits = torch.randn(4, 100) * 3
    asks = [
        LogprobOptions(num_top=3, token_ids=pack_ids([7, 99, 0])),
        None,
        LogprobOptions(),
        LogprobOptions(num_top=100),
    ]
    tokens = draw(logits, [{"temperature": 1.3, "logprobs": ask} for ask in asks])
    assert sorted(tokens.logprobs) == [0, 2, 3]
    for row, logprobs in tokens.logprobs.items():
        expected, got = reference(logits[row]), columns(logprobs)
        own = expected[int(tokens.token_ids[row])].item()
        assert got["sampled"] == pytest.approx([own], abs=1e-5)
        assert got["ranks"] == [int((expected > own).sum()) + 1]
        num_top = asks[row].num_top
        assert got["top_ids"] == expected.argsort(descending=True)[:num_top].tolist()
        assert got["top"] == pytest.approx(expected[got["top_ids"]].tolist(), abs=1e-5)
        assert logprobs.num_top == num_top
    by_id = columns(tokens.logprobs[0])["by_id"]
    assert by_id == pytest.approx(reference(logits[0])[[7, 99, 0]].tolist(), abs=1e-5)
    assert columns(tokens.logprobs[2])["by_id"] == []


def test_equal_logits_rank_equal_and_come_by_lowest_id(draw, columns):
    logits = torch.tensor([[0.0, -1.0, 2.0, 2.0, -1.0, 2.0]])
    tokens = draw(logits, [{"temperature": 0.0, "logprobs": LogprobOptions(num_top=6)}])
    got = columns(tokens.logprobs[0])
    assert tokens.token_ids.tolist() == [2]
    assert got["ranks"] == [1]
    assert got["top_ids"] == [2, 3, 5, 0, 1, 4]


def test_processed_follows_every_control(draw, columns):
    torch.manual_seed(2)
    logits = torch.randn(2, 50)
    ask = LogprobOptions(num_top=5, mode="processed")
    tokens = draw(logits, [{"temperature": 0.5, "top_k": 3, "logprobs": ask}] * 2)
    for row in range(2):
        scaled = logits[row].double() / 0.5
        kept = scaled >= scaled.sort(descending=True).values[2]
        expected = scaled.masked_fill(~kept, -math.inf).log_softmax(-1)
        got = columns(tokens.logprobs[row])
        assert got["sampled"] == pytest.approx(
            [expected[int(tokens.token_ids[row])].item()], abs=1e-5
        )
        assert got["top"][:3] == pytest.approx(expected.sort(descending=True).values[:3].tolist())
        assert got["top"][3:] == [-math.inf] * 2


def test_raw_and_processed_in_one_step(draw, columns):
    torch.manual_seed(3)
    logits = torch.randn(4, 50)
    rows = [
        {"temperature": 2.0, "logprobs": LogprobOptions(num_top=1, mode="processed")},
        {"temperature": 2.0, "logprobs": LogprobOptions(num_top=1)},
        {"temperature": 0.0, "logprobs": LogprobOptions(num_top=1, mode="processed")},
        {"temperature": 2.0},
    ]
    tokens = draw(logits, rows)
    for row, divisor in ((0, 2.0), (1, 1.0), (2, 1.0)):
        expected = reference(logits[row] / divisor).max().item()
        assert columns(tokens.logprobs[row])["top"] == pytest.approx([expected], abs=1e-5)


def test_bfloat16_logits_are_summed_in_float32(draw, columns):
    torch.manual_seed(4)
    logits = torch.randn(1, 4096).bfloat16()
    ask = LogprobOptions(num_top=2)
    got = columns(draw(logits, [{"temperature": 0.0, "logprobs": ask}]).logprobs[0])
    expected = reference(logits[0]).sort(descending=True).values[:2]
    assert got["top"] == pytest.approx(expected.tolist(), abs=1e-4)


@pytest.mark.parametrize("num_top", [0, 4])
def test_given_tokens_are_scored_position_by_position(columns, num_top, monkeypatch):
    torch.manual_seed(5)
    logits, token_ids = torch.randn(6, 40), torch.arange(6, dtype=torch.int32) * 5
    sampler = Sampler(num_slots=1, vocab_size=40, device="cpu")
    # The op was planned when the sampler was built; a step must not plan it.
    monkeypatch.delattr("openinfer_sampler._sampler.plan_score_tokens")
    got = columns(unpack_scores(sampler.score_tokens(logits, token_ids, num_top).numpy()))
    expected = reference(logits)
    own = expected.gather(1, token_ids.long().unsqueeze(1))
    assert got["sampled"] == pytest.approx(own.flatten().tolist(), abs=1e-5)
    assert got["ranks"] == ((expected > own).sum(dim=1) + 1).tolist()
    best = expected.sort(dim=1, descending=True)
    assert got["top_ids"] == best.indices[:, :num_top].flatten().tolist()
    assert got["top"] == pytest.approx(best.values[:, :num_top].flatten().tolist(), abs=1e-5)
