import math

import numpy as np
import pytest
import torch
from scipy import stats

from openinfer_contract import FEATURES, GREEDY_TEMPERATURE, LogprobOptions, pack_ids
from openinfer_kernels import IN_PROMPT
from openinfer_sampler import HONOURED, RowTooSmall, Sampler

LOGITS = torch.tensor([2.0, 1.0, 0.0, -1.0, 1.5, -3.0, 0.5, 1.0])
NUM_DRAWS = 20_000


def kept_distribution(temperature, top_k=None, top_p=1.0, min_p=0.0):
    scores = LOGITS.double().numpy() / temperature
    order = np.argsort(-scores, kind="stable")
    keep = np.exp(scores - scores.max()) >= min_p
    if top_k:
        keep[scores < scores[order[top_k - 1]]] = False
    weights = np.where(keep, np.exp(scores), 0)
    probabilities = weights / weights.sum()
    before = np.cumsum(probabilities[order]) - probabilities[order]
    keep &= probabilities >= probabilities[order[before < top_p][-1]]
    weights = np.where(keep, weights, 0)
    return weights / weights.sum()


@pytest.mark.long
@pytest.mark.parametrize(
    "controls",
    [
        {"temperature": 1.0},
        {"temperature": 0.5},
        {"temperature": 1.7},
        {"temperature": 1.0, "top_k": 3},
        {"temperature": 1.0, "top_p": 0.6},
        {"temperature": 1.0, "min_p": 0.3},
        {"temperature": 1.5, "top_k": 5, "top_p": 0.9, "min_p": 0.1},
    ],
    ids=str,
)
@pytest.mark.parametrize("vary", ["position", "seed"])
def test_draws_follow_the_distribution(draw, controls, vary):
    count = range(NUM_DRAWS)
    tokens = draw(
        LOGITS.expand(NUM_DRAWS, -1),
        [controls] * NUM_DRAWS,
        positions=list(count) if vary == "position" else [5] * NUM_DRAWS,
        seeds=[7] * NUM_DRAWS if vary == "position" else list(count),
    )
    observed = np.bincount(tokens.token_ids, minlength=len(LOGITS))
    expected = kept_distribution(**controls) * NUM_DRAWS
    assert (observed[expected == 0] == 0).all()
    drawn = expected > 0
    assert stats.chisquare(observed[drawn], expected[drawn]).pvalue > 1e-3


@pytest.mark.long
def test_neighbouring_positions_and_seeds_are_independent(draw):
    half = torch.zeros(NUM_DRAWS, 2)
    for seeds, positions in (
        ([3] * NUM_DRAWS, list(range(NUM_DRAWS))),
        (list(range(NUM_DRAWS)), [11] * NUM_DRAWS),
    ):
        ids = draw(half, [{}] * NUM_DRAWS, seeds=seeds, positions=positions).token_ids.astype(int)
        pairs = np.bincount(ids[:-1] * 2 + ids[1:], minlength=4).reshape(2, 2)
        assert stats.chi2_contingency(pairs).pvalue > 1e-3


def test_greedy_is_the_argmax_with_the_lowest_id_of_a_tie(draw):
    logits = torch.tensor([[1.0, 3.0, 3.0, 0.0], [5.0, 5.0, 5.0, 5.0], [0.0, 0.0, -1.0, 7.0]])
    for controls in ({"temperature": 0.0}, {"temperature": 1e-6}, {"top_k": 1}):
        assert draw(logits, [controls] * 3).token_ids.tolist() == [1, 0, 3]


def test_alone_batched_and_in_any_slot_the_same_tokens(draw):
    torch.manual_seed(0)
    logits = torch.randn(6, 500) * 2
    ask = LogprobOptions(num_top=4, mode="processed")
    rows = [
        {"temperature": 0.0},
        {"temperature": 1.0},
        {"temperature": 0.8, "top_k": 20, "logprobs": ask},
        {"temperature": 1.2, "top_p": 0.9},
        {"temperature": 1.0, "min_p": 0.1, "logprobs": LogprobOptions()},
        {"temperature": 0.7, "top_k": 300, "top_p": 0.99, "min_p": 0.001},
    ]
    seeds, positions = [2**64 - 1, 1, 2, 3, 4, 5], [9, 8, 7, 6, 5, 4]
    batched = draw(logits, rows, seeds=seeds, positions=positions)
    turned = draw(
        logits.flip(0), rows[::-1], seeds=seeds[::-1], positions=positions[::-1],
        slots=[40, 3, 17, 0, 21, 8],
    )  # fmt: skip
    assert batched.token_ids.tolist() == turned.token_ids.tolist()[::-1]
    for row in range(6):
        alone = draw(
            logits[row : row + 1], [rows[row]], seeds=[seeds[row]], positions=[positions[row]]
        )
        assert alone.token_ids[0] == batched.token_ids[row]
        assert alone.logprobs.get(0) == batched.logprobs.get(row)


def test_a_bad_row_fails_alone(draw):
    logits = torch.zeros(10, 16)
    logits[:, 3] = 1.0
    logits[1, 5], logits[3, 5], logits[5, 5] = math.nan, math.inf, math.nan
    logits[7], logits[8, :8] = -math.inf, -math.inf
    rows = [{"temperature": 0.0}] * 4 + [{"temperature": 1.0, "top_k": 4, "top_p": 0.9}] * 6
    tokens = draw(logits, rows)
    assert sorted(tokens.failed) == [1, 3, 5, 7]
    assert "NaN" in tokens.failed[1]
    assert "ruled out" in tokens.failed[7]
    assert tokens.exhausted == {7}
    assert (tokens.token_ids < 16).all()
    assert tokens.token_ids[8] >= 8
    assert tokens.token_ids[0] == tokens.token_ids[2] == 3


def test_minus_infinity_is_never_drawn(draw):
    logits = torch.full((2000, 8), -math.inf)
    logits[:, [2, 6]] = 0.0
    tokens = draw(logits, [{}] * 2000)
    assert not tokens.failed
    assert set(tokens.token_ids.tolist()) == {2, 6}


def test_min_tokens_holds_every_stop_id_back_until_then(draw):
    logits = torch.zeros(6, 8)
    logits[:, 5], logits[:, 6], logits[:, 1] = 9.0, 8.0, 7.0
    held = {"temperature": 0.0, "min_tokens": 2, "stop_token_ids": (6,)}
    rows = [
        held,  # the first output token
        held,  # the second
        held,  # the third: free
        {**held, "ignore_eos": True},
        {**held, "num_output_prefix": 1},
        {"temperature": 0.0},
    ]
    tokens = draw(logits, rows, positions=[3, 4, 5, 3, 4, 3], eos=(5,))
    assert tokens.token_ids.tolist() == [1, 1, 5, 5, 5, 5]


def test_min_tokens_binds_a_random_row(draw):
    rows = [{"min_tokens": 5, "stop_token_ids": (0, 1, 2)}] * 500
    tokens = draw(torch.zeros(500, 4), rows, positions=[3] * 500)
    assert set(tokens.token_ids.tolist()) == {3}


def test_masks_rule_ids_out_of_their_rows_alone(draw):
    logits = torch.arange(70.0).expand(3, -1)
    bits = np.zeros((2, 3), np.uint32)
    bits[0, 2] = 1 << 1
    bits[1, 0] = 1 << 31
    masks = (np.array([0, 2]), torch.from_numpy(bits.view(np.int32)))
    tokens = draw(logits, [{"temperature": 0.0}] * 2 + [{"temperature": 1.0}], masks=masks)
    assert tokens.token_ids.tolist() == [65, 69, 31]
    nothing = (np.array([1]), torch.zeros(1, 3, dtype=torch.int32))
    tokens = draw(logits, [{}] * 3, masks=nothing)
    assert set(tokens.failed) == tokens.exhausted == {1}


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("repetition_penalty", [0.01, 100.0])
def test_no_controls_within_their_bounds_make_scores_infinite(draw, repetition_penalty, sign):
    """Otherwise a client's bans would look like a broken model, and reset the prefix cache."""
    controls = {
        "temperature": GREEDY_TEMPERATURE,
        "repetition_penalty": repetition_penalty,
        "presence_penalty": -2.0 * sign,
        "frequency_penalty": -2.0 * sign,
        "logit_bias": tuple((i, 100.0 * sign) for i in range(8)),
        "min_p": 1e-300,
        "top_p": 1e-300,
    }
    logits = sign * 1e4 * torch.ones(2, 8)
    tokens = draw(logits, [controls, {**controls, "temperature": 100.0}])
    assert not tokens.failed


def test_what_a_request_rules_out_itself_is_not_taken_for_bad_logits(draw):
    nothing_left = {"allowed_token_ids": pack_ids([5]), "bad_words": (pack_ids([5]),)}
    logits = torch.zeros(4, 8)
    logits[2, 5] = math.nan
    tokens = draw(logits, [nothing_left, {**nothing_left, "temperature": 0.0}, {}, {}])
    assert sorted(tokens.failed) == [0, 1, 2]
    assert tokens.exhausted == {0, 1}


def test_logits_are_left_alone(draw):
    torch.manual_seed(0)
    logits = torch.randn(3, 32)
    before = logits.clone()
    rows = [
        {"top_k": 3, "min_tokens": 3, "stop_token_ids": (1,)},
        {"temperature": 0.0},
        {"temperature": 2.0, "logprobs": LogprobOptions(mode="processed")},
    ]
    draw(logits, rows)
    assert torch.equal(logits, before)


def test_a_slot_forgets_what_it_held(request_of):
    sampler = Sampler(num_slots=2, vocab_size=8, device="cpu")
    logits = torch.tensor([[0.0, 9.0, 1.0, 0, 0, 0, 0, 0]])
    busy = request_of(
        min_tokens=9, stop_token_ids=(1,), logprobs=LogprobOptions(num_top=2), top_k=2
    )
    sampler.set(1, busy, seed=1)
    at = (np.array([1]), torch.tensor([3]))
    first = sampler.sample(logits, *at)
    assert first.unpack(first.packed.numpy()).logprobs
    sampler.set(1, request_of(temperature=0.0), seed=1)
    second = sampler.sample(logits, *at)
    tokens = second.unpack(second.packed.numpy())
    assert tokens.token_ids.tolist() == [1]
    assert not tokens.logprobs


@pytest.mark.parametrize("feature", [name for name in FEATURES if name.startswith("sampling.")])
def test_every_control_is_honoured(feature):
    assert feature in HONOURED


@pytest.mark.parametrize(
    "parameters",
    [
        {"logprobs": LogprobOptions(token_ids=pack_ids([8]))},
        {"logit_bias": ((8, 1.0),)},
        {"allowed_token_ids": pack_ids([0, 8])},
        {"bad_words": (pack_ids([0, 8]),)},
    ],
    ids=str,
)
def test_ids_outside_the_vocabulary_are_refused(request_of, parameters):
    sampler = Sampler(num_slots=1, vocab_size=8, device="cpu")
    with pytest.raises(ValueError, match="below 8"):
        sampler.set(0, request_of(**parameters), seed=1)


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({"stop_token_ids": tuple(range(65))}, "stop.stop_token_ids"),
        ({"bad_words": tuple(pack_ids([i]) for i in range(257))}, "sampling.bad_words"),
        ({"bad_words": (pack_ids(range(33)),)}, "a word of sampling.bad_words"),
    ],
)
def test_more_than_a_row_holds_is_refused(request_of, parameters, field):
    sampler = Sampler(num_slots=1, vocab_size=300, device="cpu")
    with pytest.raises(RowTooSmall) as caught:
        sampler.set(0, request_of(**parameters), seed=1)
    assert caught.value.field == field
    assert caught.value.got > caught.value.limit


@pytest.mark.parametrize("allowed", [None, [2, 5, 6]], ids=["all", "some"])
def test_a_bias_is_the_sum_of_what_is_named_twice(request_of, allowed):
    sampler = Sampler(num_slots=1, vocab_size=8, device="cpu")
    named = ((5, 1.5), (1, -2.0), (5, 0.25))
    ids = None if allowed is None else pack_ids(allowed)
    sampler.set(0, request_of(logit_bias=named, allowed_token_ids=ids), seed=1)
    expected = np.zeros(8, np.float32)
    if allowed is not None:
        expected[np.setdiff1d(np.arange(8), allowed)] = -np.inf
    for token_id, bias in named:
        expected[token_id] += bias
    np.testing.assert_array_equal(sampler._rows.state.bias[0].numpy(), expected)
    # A new request replaces the biases of the one before.
    sampler.set(0, request_of(logit_bias=((0, 1.0),)), seed=1)
    assert sampler._rows.state.bias[0].tolist() == [1.0] + [0.0] * 7


def test_counts_are_those_of_the_output_beside_the_prompts_mark(request_of):
    sampler = Sampler(num_slots=1, vocab_size=8, device="cpu")
    request = request_of(prompt=(3, 1, 3, 4, 1, 4, 4), num_output_prefix=4, presence_penalty=1.0)
    sampler.set(0, request, seed=1)
    expected = [0, IN_PROMPT + 1, 0, IN_PROMPT, 3, 0, 0, 0]
    assert sampler._rows.state.counts[0].tolist() == expected
