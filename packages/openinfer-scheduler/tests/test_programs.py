"""Random programs over the whole scheduler: late, unlucky and failing steps, hostile policies."""

import random

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from openinfer_contract import Adapter, CacheOptions, Grammar
from openinfer_scheduler import FCFS, Fair, LongestPrefixMatch, Priority, ShortestPrefillFirst
from openinfer_testing.content import HostilePolicy

POLICIES = {
    "fcfs": lambda _: FCFS(),
    "priority": lambda _: Priority(),
    "longest-prefix-match": lambda rng: LongestPrefixMatch(rng.choice((0.0, 0.02, 30.0))),
    "shortest-prefill-first": lambda rng: ShortestPrefillFirst(rng.choice((0.0, 0.02, 30.0))),
    "fair": lambda _: Fair(),
    "hostile": HostilePolicy,
}

ADAPTERS = tuple(Adapter(name, name.encode() * 16) for name in "abc")

SETTINGS = st.fixed_dictionaries(
    {
        "num_blocks": st.sampled_from((8, 12, 20, 300)),
        "tokens_per_block": st.sampled_from((1, 2, 4)),
        "max_model_len": st.sampled_from((9, 20, 32)),
        "max_num_seqs": st.sampled_from((1, 3, 6)),
        "max_num_batched_tokens": st.sampled_from((18, 19, 25, 40)),
        "max_chunk_tokens": st.sampled_from((None, None, 1, 3)),
        "max_partial_prefills": st.sampled_from((None, None, 1, 2)),
        "target_itl_s": st.sampled_from((None, None, 1e-6, 0.01)),
        "num_draft_tokens": st.sampled_from((0, 0, 1, 2)),
        "max_adapters": st.sampled_from((None, 1, 2)),
        "depth": st.sampled_from((1, 2, 2, 3)),
        "admission": st.sampled_from(("optimistic", "optimistic", "lifetime")),
        "watermark": st.sampled_from((0.0, 0.01, 0.3)),
        "max_queued_requests": st.sampled_from((3, 4096)),
        "has_prefix_cache": st.sampled_from((True, True, False)),
        "fail_step": st.sampled_from((0.0, 0.0, 0.1)),
        "fail_row": st.sampled_from((0.0, 0.0, 0.03)),
        "force": st.sampled_from((0.0, 0.5)),
    }
)
REQUEST = st.fixed_dictionaries(
    {
        "num_shared": st.integers(0, 12),
        "own": st.lists(st.integers(0, 2), max_size=6),
        "max_tokens": st.integers(1, 14),
        "min_tokens": st.sampled_from((0, 0, 3)),
        "stop_token_ids": st.sampled_from(((), (), (1, 2, 3, 4, 5, 6, 7))),
        "ignore_eos": st.booleans(),
        "seed": st.sampled_from((None, 0, 2**64 - 1)),
        "priority": st.integers(0, 2),
        "num_output_prefix": st.sampled_from((0, 0, 2)),
        "adapter": st.sampled_from((None, None, None, *ADAPTERS)),
        "grammar": st.sampled_from((None, None, Grammar(kind="json_object"))),
        "speculate": st.sampled_from((None, True, False)),
        "tenant": st.sampled_from(("", "a", "b")),
        "session_id": st.sampled_from(("", "s")),
        "is_loading": st.sampled_from((False, False, False, True)),
        "cache": st.sampled_from(
            (
                CacheOptions(),
                CacheOptions(),
                CacheOptions(salt=b"s"),
                CacheOptions(read=False),
                CacheOptions(write=False),
            )
        ),
        "lifetime_s": st.sampled_from((None, None, None, 0.005)),
    }
)
PROGRAM = st.lists(
    st.one_of(
        st.tuples(st.just("add"), REQUEST),
        st.tuples(st.sampled_from(("plan", "complete", "step", "step"))),
        st.tuples(st.sampled_from(("plan", "complete", "revert", "reset", "expire"))),
        st.tuples(st.sampled_from(("abort", "load")), st.integers(0, 30)),
    ),
    min_size=25,
    max_size=80,
)


def act(loop, name, *arguments):
    if name == "add":
        fields = dict(arguments[0])
        lifetime_s = fields.pop("lifetime_s")
        prompt = [7 + n for n in range(fields.pop("num_shared"))] + fields.pop("own")
        loop.add(prompt, deadline=None if lifetime_s is None else loop.now + lifetime_s, **fields)
    elif name == "abort":
        loop.abort(f"r{arguments[0]}")
    elif name == "load":
        loop.loaded(f"r{arguments[0]}")
    elif name == "plan":
        loop.plan()
    elif name == "revert":
        loop.plan(launch=False)
    elif name == "step":
        loop.step()
    elif name == "expire":
        loop.take(loop.scheduler.expire(loop.now))
    elif name == "reset":
        loop.scheduler.reset_prefix_cache()
    elif loop.in_flight:
        loop.complete()


@pytest.mark.long
@pytest.mark.parametrize("policy", POLICIES)
@given(options=SETTINGS, program=PROGRAM, luck=st.integers(0, 2**32))
@settings(
    max_examples=200,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    database=None,
)
def test_every_stream_is_that_of_the_request_alone(loop, policy, options, program, luck):
    rng = random.Random(luck)
    subject = loop(policy=POLICIES[policy](rng), rng=rng, **options)
    for action in program:
        act(subject, *action)
    subject.loaded(*subject.requests)
    subject.run()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("luck", range(12))
def test_crowds_in_a_tiny_pool(loop, policy, luck):
    rng = random.Random(luck)
    subject = loop(
        policy=POLICIES[policy](rng),
        rng=rng,
        num_blocks=10,
        tokens_per_block=2,
        max_model_len=20,
        max_num_seqs=6,
        max_num_batched_tokens=rng.choice((6, 12, 30)),
        depth=rng.choice((1, 2, 3)),
    )
    for _ in range(30):
        prompt = [rng.randrange(3) for _ in range(rng.randrange(1, 8))]
        subject.add(prompt, max_tokens=rng.randrange(1, 12), ignore_eos=rng.random() < 0.5)
    subject.run()
    load = subject.scheduler.load()
    assert load.num_finished == len(subject.requests)
    assert load.num_preemptions > 0


@pytest.mark.parametrize("luck", range(20))
def test_failing_steps_deep_in_flight(loop, luck):
    """Whoever was preempted meanwhile does not keep tokens that stood on a failed step's blocks."""
    rng = random.Random(luck)
    subject = loop(
        rng=rng,
        num_blocks=rng.choice((8, 10, 12)),
        tokens_per_block=2,
        max_model_len=20,
        max_num_seqs=6,
        max_num_batched_tokens=rng.choice((6, 12, 30)),
        depth=4,
        fail_step=0.15,
    )
    for _ in range(20):
        prompt = [*range(rng.randrange(1, 10)), 20 + rng.randrange(3)]
        subject.add(prompt, max_tokens=rng.randrange(1, 12), ignore_eos=True)
    subject.run()


@pytest.mark.parametrize("luck", range(12))
def test_admission_for_the_lifetime_preempts_nobody(loop, luck):
    rng = random.Random(luck)
    subject = loop(
        num_blocks=rng.choice((10, 12, 16)),
        tokens_per_block=2,
        max_model_len=20,
        max_num_seqs=6,
        max_num_batched_tokens=rng.choice((6, 12, 30)),
        admission="lifetime",
    )
    for _ in range(25):
        prompt = [*range(rng.randrange(1, 10)), 20 + rng.randrange(2)]
        cache = CacheOptions(read=rng.random() < 0.5)
        subject.add(prompt, max_tokens=rng.randrange(1, 12), ignore_eos=True, cache=cache)
    subject.run()
    assert subject.scheduler.load().num_preemptions == 0


@pytest.mark.parametrize("has_prefix_cache", [True, False])
def test_one_prompt_many_times(loop, has_prefix_cache):
    subject = loop(num_blocks=12, max_num_seqs=5, has_prefix_cache=has_prefix_cache)
    for seed in range(10):
        subject.add(range(13), max_tokens=20, seed=seed, ignore_eos=True)
    subject.run()
