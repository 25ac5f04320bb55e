"""Runs on the virtual clock: deterministic, causal, complete, fast."""

import time
from dataclasses import replace
from math import inf

import pytest

from openinfer_contract import OpenInferError
from openinfer_sim import (
    AgentMix,
    RandomRouter,
    Replica,
    RequestMix,
    Route,
    Segment,
    Session,
    Setup,
    SimError,
    Simulation,
    Trace,
    Turn,
    agent_trace,
    load_figures,
    parse_trace,
    poisson_trace,
    simulate,
)
from openinfer_sim.device._content import Content

_SMALL = Setup(kv_cache_bytes=3_000 * 147_456, max_num_seqs=32, max_num_batched_tokens=512)


def _one(*turns, start_s=0.0, name="a", **options):
    return Session(session_id=name, start_s=start_s, turns=turns, **options)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("poisson:rate=30,duration=10,spread=0.7,tenants=3,skew=1", {}),
        ("agents:sessions=3,turns=5,ramp=1", {"num_replicas": 2, "router": "prefix-aware"}),
        ("bursts:rate=20,duration=5,size=16", {"setup": _SMALL, "policy": "priority"}),
    ],
)
def test_equal_arguments_give_equal_bytes(text, options):
    reports = [simulate(parse_trace(text, seed=7), seed=3, **options).report for _ in range(2)]
    assert reports[0].to_json() == reports[1].to_json()


_AGENTS = AgentMix(turns=6, think=0.2, system=600, context=900, result=300, output=60)


def _seen(trace, **options):
    """Returns all records and times between tokens, sorted."""
    recorder = simulate(trace, **options).recorder
    return sorted(recorder.records, key=repr), sorted(recorder.inter_token_s)


@pytest.mark.parametrize("router", ["prefix-aware", "least-loaded"])
def test_replicas_that_go_ahead_change_nothing(monkeypatch, router):
    """Records are the same whether replicas run ahead or step by step in order of time."""
    trace = agent_trace(sessions=12, ramp=2.0, mix=_AGENTS, seed=3)
    options = {"setup": Setup(max_num_seqs=2), "num_replicas": 3, "router": router}
    ahead = _seen(trace, **options)
    monkeypatch.setattr("openinfer_sim.replicas._simulation._least_wait_s", lambda trace: -inf)
    assert _seen(trace, **options) == ahead
    assert len({record.replica for record in ahead[0]}) == 3


@pytest.mark.parametrize(
    "options",
    [
        {"setup": Setup(max_num_seqs=2), "num_replicas": 3, "router": "prefix-aware"},
        {"setup": _SMALL, "policy": "fair", "num_replicas": 2},
        {"setup": replace(_SMALL, admission="lifetime"), "policy": "shortest-prefill-first"},
        {"setup": Setup(model="qwen3_5-4b")},
    ],
)
def test_many_steps_at_once_are_the_same_steps(monkeypatch, options):
    """Records and times between tokens are equal to the bit."""
    trace = agent_trace(sessions=8, ramp=2.0, mix=_AGENTS, seed=4)
    at_once = _seen(trace, **options)
    monkeypatch.setattr("openinfer_engine.loop._engine_loop.EngineLoop.num_skippable_steps", 0)
    assert _seen(trace, **options) == at_once


def test_another_seed_is_another_run():
    one, two = (simulate(parse_trace("poisson:rate=30,duration=10", seed=s)) for s in (1, 2))
    assert one.report.ttft_ms != two.report.ttft_ms


def test_every_request_gets_exactly_its_tokens():
    trace = parse_trace("bursts:rate=40,duration=5,size=20,spread=0.6,input=300,output=40")
    run = simulate(trace, setup=_SMALL)
    wanted = sorted(turn.num_output_tokens for s in trace.sessions for turn in s.turns)
    assert sorted(record.num_output_tokens for record in run.recorder.records) == wanted
    assert len(run.recorder.inter_token_s) == sum(wanted) - trace.num_requests
    assert run.report.num_served == trace.num_requests


def test_a_pool_that_is_too_small_for_all_preempts_and_still_serves_all():
    trace = parse_trace("bursts:rate=40,duration=2,size=40,input=100,output=200")
    run = simulate(trace, setup=_SMALL)
    assert run.report.num_preemptions > 0
    assert run.report.num_served == trace.num_requests


def test_lifetime_admission_never_preempts():
    trace = parse_trace("bursts:rate=40,duration=2,size=40,input=100,output=200")
    run = simulate(trace, setup=replace(_SMALL, admission="lifetime"))
    assert run.report.num_preemptions == 0
    assert run.report.num_served == trace.num_requests


def test_eviction_can_follow_another_policy():
    setup = replace(_SMALL, kv_cache_bytes=500_000_000)
    trace = parse_trace(
        "poisson:rate=20,duration=20,input=100,output=5,shared=400,tenants=9,skew=2"
    )
    rates = {
        name: simulate(trace, setup=replace(setup, eviction_policy=name)).report.hit_rate
        for name in ("lru", "lfu")
    }
    assert rates["lfu"] != rates["lru"]


def test_a_target_shortens_the_gaps_between_tokens():
    trace = parse_trace("poisson:rate=5,duration=40,input=8000,output=100")
    free, held = (simulate(trace, setup=Setup(target_itl_ms=t)).report for t in (None, 30.0))
    assert free.itl_ms.p99 > 100
    assert held.itl_ms.p99 < 40


def test_a_chunk_cap_lets_prompts_share_a_step():
    def ttfts(cap):
        turns = ((Turn(0.0, (Segment(i, 8000),), 1),) for i in range(2))
        sessions = [Session(session_id=str(i), start_s=0.0, turns=t) for i, t in enumerate(turns)]
        trace = Trace(name="", sessions=tuple(sessions))
        setup = Setup(long_prefill_token_threshold=cap)
        return sorted(record.ttft_s for record in simulate(trace, setup=setup).recorder.records)

    first, second = ttfts(None)
    assert second > 1.5 * first
    first, second = ttfts(1000)
    assert second < 1.5 * first


def test_the_second_turn_finds_the_first_one_and_its_answer_cached():
    turns = Turn(0.0, (Segment(1, 1000),), 200), Turn(3.0, (Segment(2, 100),), 5)
    first, second = simulate(Trace(name="", sessions=(_one(*turns),))).recorder.records
    assert (first.num_prompt_tokens, first.num_cached_tokens) == (1000, 0)
    assert second.num_prompt_tokens == 1300
    # The last sampled token was never forwarded, and only full blocks of 16 are kept.
    assert second.num_cached_tokens == 1199 // 16 * 16
    assert second.arrival == pytest.approx(first.ended_at + 3.0)


def test_without_a_prefix_cache_nothing_is_found():
    turns = Turn(0.0, (Segment(1, 1000),), 20), Turn(3.0, (Segment(2, 100),), 5)
    run = simulate(Trace(name="", sessions=(_one(*turns),)), has_prefix_cache=False)
    assert run.report.hit_rate == 0.0


def test_a_session_without_history_begins_anew():
    turns = Turn(0.0, (Segment(1, 1000),), 20), Turn(0.0, (Segment(2, 100),), 5)
    trace = Trace(name="", sessions=(_one(*turns, has_history=False),))
    assert [r.num_prompt_tokens for r in simulate(trace).recorder.records] == [1000, 100]
    assert trace.max_model_len == 1020


def test_a_request_that_can_never_fit_is_rejected_and_ends_its_session():
    turns = Turn(0.0, (Segment(1, 5000),), 10), Turn(0.0, (Segment(2, 1),), 10)
    other = _one(Turn(0.0, (Segment(3, 10),), 10), name="b")
    run = simulate(Trace(name="", sessions=(_one(*turns), other)), setup=_SMALL)
    assert sorted(record.outcome for record in run.recorder.records) == ["length", "rejected"]
    assert run.report.num_rejected == 1


def test_a_replica_with_little_to_do_answers_at_once():
    report = simulate(parse_trace("poisson:rate=2,duration=60,input=200,output=20")).report
    assert report.ttft_ms.p50 < 15
    assert report.ttft_ms.max < 40


class _Listed(RandomRouter):
    """Sends requests to the replicas of a list, in turn."""

    def __init__(self, replicas):
        super().__init__(max(replicas) + 1)
        self._replicas = iter(replicas)

    def route(self, prompt_token_ids, /):
        return Route(next(self._replicas), 0)


def _simulate_listed(sessions, replicas):
    content = Content(1000)
    options = Setup().engine_options(seed=0)
    engines = [Replica(Setup(), content, options) for _ in range(max(replicas) + 1)]
    trace = Trace(name="", sessions=sessions)
    return Simulation(trace, engines, _Listed(replicas), vocab_size=1000).run().records


def test_a_busy_replica_does_not_run_ahead_of_what_another_one_causes():
    """A second turn reaches a replica that is still decoding another request's long output."""
    long = _one(Turn(0.0, (Segment(1, 100),), 3000), name="long")
    short = _one(
        Turn(0.001, (Segment(2, 100),), 50), Turn(0.001, (Segment(3, 100),), 50), name="short"
    )
    first, second, last = _simulate_listed((long, short), [0, 1, 0])
    assert (first.replica, second.replica, last.replica) == (1, 0, 0)
    assert second.ended_at < last.ended_at
    assert second.ttft_s < 0.05


def test_nothing_happens_before_its_cause():
    trace = agent_trace(
        sessions=12, ramp=5.0, mix=AgentMix(turns=6, context=5_000, system=2_000), seed=1
    )
    records = simulate(trace, num_replicas=3, router="random").recorder.records
    assert len(records) == trace.num_requests
    by_start = {session.start_s: session for session in trace.sessions}
    assert sum(record.arrival in by_start for record in records) == len(trace.sessions)
    for record in records:
        assert record.arrival < record.first_token_at <= record.ended_at
    assert {record.replica for record in records} == {0, 1, 2}


def test_a_replica_alone_does_not_depend_on_the_others():
    """Two independent halves of a trace on two replicas give the records of each half alone."""

    def half(length, seed):
        mix = RequestMix(input=length, output=50)
        drawn = poisson_trace(rate=10, duration=5, mix=mix, seed=seed).sessions
        return tuple(replace(s, session_id=f"{seed}-{s.session_id}") for s in drawn)

    def records(*halves):
        starts = sorted((s.start_s, i) for i, half in enumerate(halves) for s in half)
        listed = _simulate_listed(sum(halves, ()), [i for _, i in starts])
        return sorted((r.arrival, r.first_token_at, r.ended_at) for r in listed)

    short, long = half(500, 1), half(700, 2)
    assert records(short, long) == sorted(records(short) + records(long))


@pytest.mark.timed
@pytest.mark.long
def test_five_minutes_at_8_requests_a_second_keep_the_pace_of_an_hour_in_90_s():
    trace = parse_trace("poisson:rate=8,duration=300")
    begun = time.process_time()
    run = simulate(trace)
    assert time.process_time() - begun < 90 / 12
    assert run.report.num_served == trace.num_requests > 2000


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"num_replicas": 0}, "replicas"),
        ({"router": "nearest"}, "nearest.*prefix-aware"),
        ({"policy": "no_such_module:Policy"}, "no_such_module"),
        ({"policy": "nosuch"}, "nosuch"),
        ({"policy": object()}, "policy must be a name such as"),
        ({"seed": -1}, "seed must be in"),
    ],
)
def test_what_cannot_be_simulated_is_named(options, named):
    with pytest.raises(OpenInferError, match=named):
        simulate(parse_trace("poisson:duration=1"), **options)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"model": "gpt-1"}, "gpt-1.*qwen3-4b"),
        ({"device": "abacus"}, "abacus.*h200"),
        ({"model": "qwen3-32b", "device": "rtx-5090"}, "no memory"),
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"max_num_batched_tokens": 8}, "max_num_batched_tokens"),
        ({"admission": "hopeful"}, "hopeful.*admission"),
        ({"eviction_policy": "any"}, "eviction_policy"),
        ({"target_itl_ms": -1.0}, "target_itl_ms"),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization"),
        ({"max_model_len": 10**9}, "max_model_len 1000000000 exceeds"),
    ],
)
def test_a_setup_that_makes_no_sense_is_refused(options, named):
    with pytest.raises(SimError, match=named):
        Setup(**options)


def test_times_between_tokens_add_up_to_the_answer():
    trace = Trace(name="", sessions=(_one(Turn(0.0, (Segment(1, 100),), 200)),))
    run = simulate(trace)
    (record,) = run.recorder.records
    gaps = list(run.recorder.inter_token_s)
    assert sum(gaps) == pytest.approx(record.ended_at - record.first_token_at, rel=1e-5)
    assert max(gaps) < 1.05 * min(gaps)


def test_the_front_process_reads_one_prompt_after_the_other():
    overheads = load_figures().overheads
    replica = Replica(Setup(), Content(1000), Setup().engine_options())
    cost = overheads.request_s + 1000 * overheads.prompt_token_s
    first, second = (replica.receive(1.0, 1000) for _ in range(2))
    assert first == pytest.approx(1.0 + overheads.latency_s / 2 + cost)
    assert second == pytest.approx(first + cost)
    assert replica.receive(9.0, 1000) == pytest.approx(9.0 + overheads.latency_s / 2 + cost)


def test_a_replica_that_keeps_something_has_no_report(monkeypatch):
    monkeypatch.setattr(Replica, "is_idle", False)
    with pytest.raises(SimError, match="replica 0 is not idle"):
        simulate(parse_trace("closed:concurrency=1,requests=1,input=20,output=2"))
