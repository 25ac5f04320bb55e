"""Models with several cache groups: every stream equals that of the request alone.

Four groups share an arena: full, compressed (one entry for several tokens), window and state.
"""

import random
from fractions import Fraction

import numpy as np
import pytest

from openinfer_contract import CacheOptions, Grammar, pack_ids
from openinfer_kv_cache import CacheGroup, Plane, Resume, plan_slabs
from openinfer_scheduler import FCFS, Fair, LongestPrefixMatch, Priority, ShortestPrefillFirst
from openinfer_testing.content import HostilePolicy

FULL = CacheGroup(name="full", tokens_per_block=2, planes=(Plane(name="kv", bytes_per_token=32),))
COMPRESSED = CacheGroup(
    name="compressed",
    tokens_per_block=4,
    entries_per_token=Fraction(1, 4),
    planes=(Plane(name="latent", bytes_per_token=64),),
)
WINDOW = CacheGroup(
    name="near",
    kind="window",
    window=5,
    tokens_per_block=2,
    planes=(Plane(name="kv", bytes_per_token=64),),
)
STATE = CacheGroup(
    name="state",
    kind="state",
    tokens_per_block=4,
    planes=(Plane(name="s", bytes_per_token=256),),
    resume=Resume(every_tokens=8, output_tokens=4),
)
MODELS = {
    "all": (FULL, COMPRESSED, WINDOW, STATE),
    "states": (FULL, STATE),
    "windows": (FULL, WINDOW),
}


POLICIES = {
    "fcfs": lambda _: FCFS(),
    "priority": lambda _: Priority(),
    "longest-prefix-match": lambda _: LongestPrefixMatch(),
    "shortest-prefill-first": lambda _: ShortestPrefillFirst(),
    "fair": lambda _: Fair(),
    "hostile": HostilePolicy,
}


def fitting_slabs(groups, max_model_len):
    """Returns the fewest slabs in which one request of full length is sure to fit."""
    layout = plan_slabs(groups)
    num_blocks = [
        1 if group.kind == "state" else -(-max_model_len // group.tokens_per_block)
        for group in groups
    ]
    return sum(-(-n // per) for n, per in zip(num_blocks, layout.blocks_per_slab, strict=True))


def crowd(loop, rng, policy, model, **options):
    groups = MODELS[model]
    most = 28
    settings = {
        "max_model_len": most,
        "max_num_seqs": rng.choice((2, 4, 6)),
        "max_num_batched_tokens": rng.choice((18, 19, 40)),
        "depth": rng.choice((1, 2, 3)),
        "num_draft_tokens": rng.choice((0, 0, 1, 2)),
        "max_chunk_tokens": rng.choice((None, 3)),
        "watermark": rng.choice((0.0, 0.3)),
        "num_slabs": fitting_slabs(groups, most) + rng.choice((0, 0, 2, 5, 40)),
        "has_prefix_cache": rng.random() < 0.9,
    }
    return loop(policy=policy, rng=rng, groups=groups, **(settings | options))


def act(subject, rng):
    """Performs one random action."""
    what = rng.random()
    if what < 0.25:
        prompt = [7 + n for n in range(rng.randrange(0, 16))]
        prompt += [rng.randrange(3) for _ in range(rng.randrange(1, 6))]
        hints = sorted(rng.randrange(1, 20) for _ in range(rng.randrange(3)))
        subject.add(
            prompt,
            max_tokens=rng.randrange(1, 12),
            ignore_eos=rng.random() < 0.7,
            priority=rng.randrange(3),
            tenant=rng.choice("ab"),
            speculate=rng.choice((None, False)),
            cache=CacheOptions(
                read=rng.random() < 0.9,
                write=rng.random() < 0.9,
                boundaries=pack_ids(hints),
            ),
        )
    elif what < 0.7:
        subject.step()
    elif what < 0.8:
        subject.plan()
    elif what < 0.88 and subject.in_flight:
        subject.complete()
    elif what < 0.95:
        subject.abort(f"r{rng.randrange(30)}")
    elif what < 0.96:
        subject.scheduler.reset_prefix_cache()


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("policy", POLICIES)
def test_every_stream_equals_a_run_of_the_request_alone(loop, policy, model):
    counts = np.zeros(4, int)
    for luck in range(10):
        rng = random.Random(luck)
        failing = 0.05 if luck % 5 == 4 else 0.0
        admission = "lifetime" if luck % 4 == 3 else "optimistic"
        subject = crowd(
            loop, rng, POLICIES[policy](rng), model, fail_step=failing, admission=admission
        )
        for _ in range(100):
            act(subject, rng)
        subject.run()
        load, others = subject.scheduler.load(), subject.executor.others
        assert admission == "optimistic" or not load.num_preemptions
        counts += (
            load.num_cached_tokens,
            load.num_preemptions,
            others.num_restores,
            others.num_checkpoints,
        )
    has_state = model != "windows"
    assert (counts[:2] > (40, 5)).all(), counts
    assert (counts[2:] > (4, 20)).all() == has_state, counts


@pytest.mark.parametrize("model", MODELS)
def test_forced_output_is_forwarded_in_every_kind_of_group(loop, model):
    """Within one chunk, window blocks are freed and states copied; no sequence runs out of
    blocks."""
    counts = np.zeros(4, int)
    for luck in range(12):
        rng = random.Random(luck)
        admission = "lifetime" if luck % 4 == 3 else "optimistic"
        subject = crowd(loop, rng, FCFS(), model, force=0.5, admission=admission)
        for number in range(20):
            prompt = [7 + n for n in range(rng.randrange(0, 12))] + [rng.randrange(3)]
            held = Grammar(kind="json_object") if number % 4 else None
            subject.add(prompt, max_tokens=rng.randrange(1, 14), ignore_eos=True, grammar=held)
            for _ in range(rng.randrange(4)):
                subject.step()
        subject.run()
        load, others = subject.scheduler.load(), subject.executor.others
        assert admission == "optimistic" or not load.num_preemptions
        counts += (
            subject.num_forced,
            load.num_preemptions,
            others.num_restores,
            others.num_checkpoints,
        )
    assert (counts[:2] > (250, 3)).all(), counts
    assert (counts[2:] > (4, 25)).all() == (model != "windows"), counts


def test_windows_take_no_more_forced_tokens_than_a_chunk_has(loop):
    subject = loop(groups=MODELS["windows"], num_slabs=60, max_chunk_tokens=3, depth=1)
    request_id = subject.add(
        range(6), max_tokens=20, ignore_eos=True, grammar=Grammar(kind="json_object")
    )
    while not subject.output[request_id]:
        subject.step()
    subject.force(request_id, 8)
    assert len(subject.output[request_id]) == 4
    subject.run()


def turns(loop, num_output, follow_up):
    """Runs a request, then one that continues its text; returns the latter's prompt and hits."""
    subject = loop(groups=MODELS["states"], num_slabs=60, max_num_batched_tokens=40)
    subject.add(range(9), max_tokens=num_output, ignore_eos=True)
    subject.run()
    text = [*range(9), *subject.output["r0"]]
    subject.add([*text, *follow_up], max_tokens=3)
    subject.run()
    return len(text), dict(subject.ends["r1"].cached).get("device", 0)


@pytest.mark.parametrize("num_output", [5, 14, 15, 16])
def test_the_next_turn_begins_where_the_output_ended(loop, num_output):
    """The last token is never forwarded, and states are copied every four positions."""
    num_tokens, num_cached = turns(loop, num_output, [30, 31])
    assert num_cached == (num_tokens - 1) // 4 * 4


def test_a_chunk_ends_where_a_message_does(loop):
    subject = loop(groups=(FULL, STATE), num_slabs=60, max_num_batched_tokens=40)
    subject.add(range(27), max_tokens=1, cache=CacheOptions(boundaries=pack_ids([13])))
    sizes = []
    while (plan := subject.plan()) is not None:
        sizes += [row.num_tokens for row in plan.rows]
        subject.complete()
    assert sizes == [8, 4, 4, 8, 3], "multiples of eight, the message's end, the last boundary"
    subject.run()


@pytest.mark.parametrize("model", MODELS)
def test_eight_requests_on_a_cold_prompt_cost_one_prefill(loop, model):
    """Each request computes only the tail after the last position at which all groups resume."""
    subject = loop(groups=MODELS[model], num_slabs=200, max_num_seqs=8, max_num_batched_tokens=16)
    for seed in range(8):
        subject.add(range(23), max_tokens=2, seed=seed)
    num_forwarded = 0
    while subject.scheduler.has_work:
        while (plan := subject.plan()) is not None:
            num_forwarded += sum(r.num_tokens for r in plan.rows if r.token_ids is not None)
        subject.complete()
    last = 22 if model == "windows" else 20
    assert num_forwarded == 23 + 7 * (23 - last)
    subject.run()


@pytest.mark.parametrize("admission", ["optimistic", "lifetime"])
def test_a_window_group_frees_blocks_outside_the_window(loop, admission):
    """The sequence is ten times as long as the pool could hold without the window."""
    groups = (
        CacheGroup(
            name="full",
            tokens_per_block=64,
            entries_per_token=Fraction(1, 64),
            planes=(Plane(name="latent", bytes_per_token=64),),
        ),
        WINDOW,
    )
    subject = loop(
        groups=groups,
        num_slabs=160,
        max_model_len=2000,
        max_num_batched_tokens=16,
        admission=admission,
    )
    for number in range(3):
        subject.add([number] * 900, max_tokens=200, ignore_eos=True)
    subject.run(max_steps=3000)
    load = subject.scheduler.load()
    assert (load.num_finished, load.num_preemptions) == (3, 0)


def test_a_request_that_can_never_fit_is_refused(loop):
    """Room is counted in slabs: a slab holds four blocks of the first group, or one state."""
    subject = loop(groups=MODELS["states"], num_slabs=3, max_model_len=64)
    # The last token is not forwarded: 16 positions fill the eight blocks of two slabs.
    fitting = subject.add(range(15), max_tokens=2, ignore_eos=True)
    refused = subject.add(range(15), max_tokens=3, ignore_eos=True)
    assert (refused.kind, refused.field) == ("too_long", "prompt_token_ids")
    assert refused.message.endswith("need 4 cache blocks; this engine has 3")
    subject.run()
    assert subject.ends[fitting].num_output_tokens == 2


def test_a_lone_request_that_does_not_fit_with_its_hit_starts_without_it(loop):
    """Its cached blocks pin too many slabs to leave room for its other blocks."""
    subject = loop(
        groups=MODELS["states"],
        num_slabs=fitting_slabs(MODELS["states"], 28),
        max_model_len=28,
        max_num_seqs=3,
        max_num_batched_tokens=40,
        depth=1,
        watermark=0.0,
    )
    for num_shared, own, max_tokens in (
        (11, [0, 2], 2),
        (14, [1, 2], 10),
        (6, [1], 2),
        (9, [2], 1),
    ):
        subject.add([*range(7, 7 + num_shared), *own], max_tokens=max_tokens, ignore_eos=True)
    subject.run()
    prompt = [*range(7, 21), 0, 0, 0]
    assert subject.cache.peek(subject.cache.keys(pack_ids(prompt))) >= 8
    last = subject.add(prompt, max_tokens=11, ignore_eos=True)
    subject.run(max_steps=60)
    assert subject.ends[last].num_output_tokens == 11
    assert subject.ends[last].cached == ()


def test_a_lone_sequence_that_runs_short_restarts_once_without_sharing(loop):
    """A restart with sharing would hit its own cached blocks, which are spread over slabs, and run
    short again."""
    subject = loop(
        groups=MODELS["states"],
        num_slabs=fitting_slabs(MODELS["states"], 28),
        max_model_len=28,
        max_num_batched_tokens=40,
        depth=1,
        watermark=0.0,
    )
    subject.add([*range(7, 22), 0, 0, 1], max_tokens=6, ignore_eos=True)
    last = subject.add([*range(7, 14), 0, 1, 1], max_tokens=18, ignore_eos=True)
    subject.run()
    assert subject.ends[last].num_output_tokens == 18
    assert subject.scheduler.load().num_preemptions == subject.ends[last].num_preemptions == 1
