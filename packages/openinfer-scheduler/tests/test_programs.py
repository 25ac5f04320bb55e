"""Random programs over the whole scheduler, with failing steps and hostile policies."""

import random

import pytest

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

NUM_PROGRAMS = 120

ADAPTERS = tuple(Adapter(name, name.encode() * 16) for name in "abc")

SETTINGS = {
    "num_blocks": (8, 12, 20, 300),
    "tokens_per_block": (1, 2, 4),
    "max_model_len": (9, 20, 32),
    "max_num_seqs": (1, 3, 6),
    "max_num_batched_tokens": (18, 19, 25, 40),
    "max_chunk_tokens": (None, None, 1, 3),
    "max_partial_prefills": (None, None, 1, 2),
    "target_itl_s": (None, None, 1e-6, 0.01),
    "num_draft_tokens": (0, 0, 1, 2),
    "max_adapters": (None, 1, 2),
    "depth": (1, 2, 2, 3),
    "admission": ("optimistic", "optimistic", "lifetime"),
    "watermark": (0.0, 0.01, 0.3),
    "max_queued_requests": (3, 4096),
    "has_prefix_cache": (True, True, False),
    "fail_step": (0.0, 0.0, 0.1),
    "fail_row": (0.0, 0.0, 0.03),
    "force": (0.0, 0.5),
}
REQUEST = {
    "num_shared": range(13),
    "num_own": range(7),
    "max_tokens": range(1, 15),
    "min_tokens": (0, 0, 3),
    "stop_token_ids": ((), (), (1, 2, 3, 4, 5, 6, 7)),
    "ignore_eos": (True, False),
    "seed": (None, 0, 2**64 - 1),
    "priority": range(3),
    "num_output_prefix": (0, 0, 2),
    "adapter": (None, None, None, *ADAPTERS),
    "grammar": (None, None, Grammar(kind="json_object")),
    "speculate": (None, True, False),
    "tenant": ("", "a", "b"),
    "session_id": ("", "s"),
    "is_loading": (False, False, False, True),
    "cache": (
        CacheOptions(),
        CacheOptions(),
        CacheOptions(salt=b"s"),
        CacheOptions(read=False),
        CacheOptions(write=False),
    ),
    "lifetime_s": (None, None, None, 0.005),
}
ACTIONS = (
    ("add",),
    ("plan", "complete", "step", "step"),
    ("plan", "complete", "reset", "expire"),
    ("abort", "load"),
)


def drawn(rng, fields):
    """Returns a random value for each field."""
    return {name: rng.choice(values) for name, values in fields.items()}


def act(loop, rng):
    """Performs a random action; those that make progress are more frequent."""
    name = rng.choice(rng.choice(ACTIONS))
    if name == "add":
        fields = drawn(rng, REQUEST)
        lifetime_s, num_shared = fields.pop("lifetime_s"), fields.pop("num_shared")
        own = [rng.randrange(3) for _ in range(fields.pop("num_own"))]
        deadline = None if lifetime_s is None else loop.now + lifetime_s
        loop.add([*range(7, 7 + num_shared), *own], deadline=deadline, **fields)
    elif name == "abort":
        loop.abort(f"r{rng.randrange(31)}")
    elif name == "load":
        loop.loaded(f"r{rng.randrange(31)}")
    elif name == "plan":
        loop.plan()
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
def test_every_stream_equals_a_run_of_the_request_alone(loop, policy):
    """Runs random programs under random settings.

    They are drawn without hypothesis, which took twice as long to draw them as they take to run and
    could not shrink them.
    """
    num_faults = 0
    for luck in range(NUM_PROGRAMS):
        rng = random.Random(luck)
        try:
            subject = loop(policy=POLICIES[policy](rng), rng=rng, **drawn(rng, SETTINGS))
            for _ in range(rng.randrange(25, 81)):
                act(subject, rng)
            subject.loaded(*subject.requests)
            subject.run()
            num_faults += subject.num_faults
        except BaseException as error:
            error.add_note(f"program {luck} under {policy}")
            raise
    assert (num_faults > 0) == (policy == "hostile")


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("luck", range(12))
def test_crowds_in_a_tiny_pool(crowd, policy, luck):
    subject = crowd(luck, POLICIES[policy])
    load = subject.scheduler.load()
    assert load.num_finished == len(subject.requests)
    assert load.num_preemptions > 0


@pytest.mark.parametrize("luck", range(20))
def test_failing_steps_deep_in_flight(loop, luck):
    """A preempted sequence drops tokens that were computed on blocks of a failed step."""
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
def test_lifetime_admission_never_preempts(loop, luck):
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
