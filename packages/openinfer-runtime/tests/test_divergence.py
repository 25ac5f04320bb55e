"""In bf16 another batch rounds differently: draws may differ, but only where two ids nearly tie.

The tests compute the noise of each draw again, from its definition (docs/decisions/0008). Every
token must fit the noise of its (seed, position), on every path and in every batch.
"""

import numpy as np
import pytest

NUM_TOKENS = 40
TEMPERATURE = 1.5
SEED = 120
"""Chosen so that at least one sequence differs."""
PATHS = {
    "batched": {},
    "chunked": {"max_num_batched_tokens": 11},
    "two at once": {"max_num_seqs": 2},
    "small blocks": {"block_size": 4, "max_num_batched_tokens": 23},
}
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def _mix(words):
    for shift, multiplier in zip((30, 27), _MULTIPLIERS, strict=True):
        words = (words ^ (words >> np.uint64(shift))) * np.uint64(multiplier)
    return words ^ (words >> np.uint64(31))


def _noise(seed, position, vocab_size):
    """Returns the Gumbel noise of every id, float64."""
    with np.errstate(over="ignore"):
        key = _mix(_mix(np.array([seed], np.uint64) + _GAMMA) + np.uint64(position))
        steps = np.arange(1, (vocab_size + 1) // 2 + 1, dtype=np.uint64) * _GAMMA
        words = _mix(key + steps)
    bits = words.astype("<u8").view("<u4")[:vocab_size] & 0x7FFFFFFF
    fraction = (bits / 2**31).clip(2.0**-32, 1 - 2.0**-24)
    return -np.log(-np.log1p(-fraction))


def _requests(ask, prompts, seed=SEED):
    return [
        ask(prompt, max_tokens=NUM_TOKENS, wants_all=True, temperature=TEMPERATURE, seed=seed + row)
        for row, prompt in enumerate(prompts * 2)
    ]


def _perturbed(output, at, seed, position):
    logprobs = output.by_id[at].astype(np.float64)
    return logprobs / TEMPERATURE + _noise(seed, position, len(logprobs))


def _check_divergence(first, second, prompts):
    """Returns the number of sequences that differ; fails if rounding does not explain one."""
    noise, gaps = 0.0, []
    for row, (one, other) in enumerate(zip(first, second, strict=True)):
        for at in range(NUM_TOKENS):
            position = len((prompts * 2)[row]) + at
            a, b = one.token_ids[at], other.token_ids[at]
            scores = _perturbed(one, at, SEED + row, position)
            assert scores[a] > scores.max() - 1e-4, f"sequence {row}, token {at} is not the draw"
            if a != b:
                gaps.append((row, at, scores[a] - scores[b]))
                break
            noise = max(noise, np.abs(one.by_id[at] - other.by_id[at]).max() / TEMPERATURE)
    for row, at, gap in gaps:
        assert gap <= 2 * noise, f"sequence {row} parts at {at}: {gap:.3g}, noise {noise:.3g}"
    return len(gaps)


@pytest.fixture(scope="module")
def alone(engine, ask, prompts):
    runner = engine("gqa4-d128-bf16", dtype="bfloat16", enable_prefix_caching=False)
    return [runner.run([request])[0] for request in _requests(ask, prompts)]


@pytest.mark.long
def test_bfloat16_parts_only_where_the_best_two_nearly_tie(engine, ask, prompts, alone):
    num_parted = 0
    for options in PATHS.values():
        runner = engine("gqa4-d128-bf16", dtype="bfloat16", **options)
        for _ in range(2):  # the second time over cached prefixes
            outputs = runner.run(_requests(ask, prompts))
            num_parted += _check_divergence(alone, outputs, prompts)
    assert num_parted, "no path rounded differently: nothing was tested"


def test_another_seed_is_no_rounding(engine, ask, prompts, alone):
    runner = engine("gqa4-d128-bf16", dtype="bfloat16")
    outputs = runner.run(_requests(ask, prompts, seed=SEED + 1))
    with pytest.raises(AssertionError, match="parts at"):
        _check_divergence(alone, outputs, prompts)
