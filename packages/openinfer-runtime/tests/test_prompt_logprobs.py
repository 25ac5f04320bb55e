"""Prompt logprobs: reported once, from the requested position, at no cost to other requests."""

import pytest

from openinfer_contract import PromptLogprobOptions, unpack_floats, unpack_ids


def test_prompt_logprobs_come_once_however_often_a_prompt_is_recomputed(
    engine, ask, prompts, block_bytes
):
    def wanted():
        options = PromptLogprobOptions(num_top=1)
        return [ask(ids, max_tokens=24, prompt_logprobs=options) for ids in prompts * 2]

    runner = engine(kv_cache_bytes=14 * block_bytes, enable_prefix_caching=False, max_model_len=112)
    outputs, expected = runner.run(wanted()), engine().run(wanted())
    assert runner.loop.load().num_preemptions > 0
    for output, other in zip(outputs, expected, strict=True):
        assert output.token_ids == other.token_ids
        ours, theirs = output.event.prompt_logprobs, other.event.prompt_logprobs
        assert (ours.start, ours.logprobs.ranks) == (1, theirs.logprobs.ranks)


def test_prompt_logprobs_start_where_they_are_asked_to(engine, ask, prompts):
    runner = engine(max_num_batched_tokens=8)
    whole, part = runner.run(
        [
            ask(prompts[3], prompt_logprobs=PromptLogprobOptions(num_top=1)),
            ask(prompts[3], prompt_logprobs=PromptLogprobOptions(num_top=1, start=20)),
        ]
    )
    all_scores, scores = whole.event.prompt_logprobs, part.event.prompt_logprobs
    assert (all_scores.start, scores.start) == (1, 20)
    sampled = unpack_floats(all_scores.logprobs.sampled)
    assert len(sampled) == 49
    assert unpack_floats(scores.logprobs.sampled) == pytest.approx(sampled[19:], abs=1e-4)
    assert unpack_ids(scores.logprobs.ranks) == unpack_ids(all_scores.logprobs.ranks)[19:]


def test_once_the_prompt_is_scored_steps_are_those_of_others(engine, ask, prompts):
    runner = engine(max_num_batched_tokens=40).pad_steps()
    (other,) = runner.run([ask(prompts[0], max_tokens=12)])
    rows, plain_steps = runner.executor._rows, []
    begin = rows.enter_exact
    rows.enter_exact = lambda plan: plain_steps.append(plan) or begin(plan)
    options = PromptLogprobOptions(num_top=1)
    outputs = runner.run(
        [
            ask(prompts[0], max_tokens=12),
            ask(prompts[3], max_tokens=12, prompt_logprobs=options),
        ]
    )
    assert outputs[0].token_ids == other.token_ids
    assert plain_steps, "logits of a whole prompt are never captured"
    assert all(plan.rows[-1].token_ids is not None for plan in plain_steps)
