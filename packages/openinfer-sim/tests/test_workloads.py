"""Random traces have the distributions that were asked for."""

import numpy as np
import pytest

from openinfer_contract import unpack_ids
from openinfer_sim import (
    AgentMix,
    RequestMix,
    Segment,
    Session,
    Trace,
    TraceError,
    Turn,
    agent_trace,
    burst_trace,
    closed_trace,
    parse_trace,
    poisson_trace,
    trace_kinds,
)
from openinfer_sim.traces._trace import SegmentTokens


def test_poisson_arrivals_have_the_rate_and_the_gaps():
    trace = poisson_trace(rate=20, duration=1000, mix=RequestMix(), seed=0)
    starts = np.array([session.start_s for session in trace.sessions])
    gaps = np.diff(starts)
    assert trace.num_requests == pytest.approx(20_000, rel=0.03)
    assert gaps.min() >= 0
    assert gaps.mean() == pytest.approx(0.05, rel=0.03)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.05)  # exponential


def test_bursts_have_the_rate_and_arrive_at_once():
    trace = burst_trace(rate=20, duration=1000, size=16, mix=RequestMix(), seed=0)
    starts = [session.start_s for session in trace.sessions]
    assert trace.num_requests == pytest.approx(20_000, rel=0.1)
    assert len(set(starts)) == trace.num_requests / 16


def test_a_closed_loop_has_so_many_clients_without_history():
    trace = closed_trace(concurrency=7, requests=3, mix=RequestMix(), seed=0)
    assert [len(session.turns) for session in trace.sessions] == [3] * 7
    assert trace.max_model_len == 1024 + 128
    keys = {t.segments[0].key for s in trace.sessions for t in s.turns}
    assert len(keys) == 21


def test_lengths_tenants_and_priorities_follow_the_mix():
    mix = RequestMix(input=500, output=80, spread=0.6, tenants=3, skew=1.0, priorities=4)
    trace = poisson_trace(rate=100, duration=100, mix=mix, seed=0)
    inputs = [session.turns[0].num_new_tokens for session in trace.sessions]
    outputs = [session.turns[0].num_output_tokens for session in trace.sessions]
    assert np.median(inputs) == pytest.approx(500, rel=0.05)
    assert np.median(outputs) == pytest.approx(80, rel=0.05)
    assert np.std(np.log(inputs)) == pytest.approx(0.6, rel=0.05)
    counts = [sum(s.tenant == f"tenant-{i}" for s in trace.sessions) for i in range(3)]
    assert np.array(counts) / counts[0] == pytest.approx([1, 1 / 2, 1 / 3], rel=0.1)
    assert {session.priority for session in trace.sessions} == {0, 1, 2, 3}


def test_a_shared_prefix_is_the_tenant_s():
    mix = RequestMix(shared=100, tenants=2)
    trace = poisson_trace(rate=50, duration=10, mix=mix, seed=0)
    first = {session.turns[0].segments[0] for session in trace.sessions}
    assert len(first) == 2


def test_a_client_of_a_closed_loop_is_one_tenant_s():
    mix = RequestMix(shared=100, tenants=3, priorities=3)
    trace = closed_trace(concurrency=9, requests=20, mix=mix, seed=0)
    prefixes = [{turn.segments[0] for turn in s.turns} for s in trace.sessions]
    assert {len(first) for first in prefixes} == {1}
    by_tenant = {(s.tenant, *first) for s, first in zip(trace.sessions, prefixes, strict=True)}
    assert len(by_tenant) == len(set().union(*prefixes)) == 3


def test_lengths_that_spread_beyond_all_measure_end_somewhere():
    trace = parse_trace("poisson:duration=2,spread=1000")
    lengths = [session.turns[0].num_new_tokens for session in trace.sessions]
    assert min(lengths) == 1
    assert max(lengths) == 1 << 22
    waits = [t.wait_s for s in parse_trace("agents:think_spread=1000").sessions for t in s.turns]
    assert max(waits) == 1e8


@pytest.mark.long
def test_agents_have_the_published_shape():
    """Median 43 turns, prompts of 142k tokens, 444 tokens out, over 96 % seen before."""
    mix = AgentMix()
    trace = agent_trace(sessions=2000, ramp=10, mix=mix, seed=0)
    prompts = [n for session in trace.sessions for n in session.prompt_lengths()]
    turns = [turn for session in trace.sessions for turn in session.turns]
    num_new = sum(turn.num_new_tokens for turn in turns) - mix.system * len(trace.sessions)
    assert np.median([len(s.turns) for s in trace.sessions]) == pytest.approx(43, abs=2)
    assert np.median(prompts) == pytest.approx(142_000, rel=0.03)
    assert np.median([t.num_output_tokens for t in turns]) == pytest.approx(444, rel=0.03)
    assert 1 - num_new / sum(prompts) > 0.96
    assert trace.max_model_len <= mix.window


def test_sessions_share_their_system_prompt_and_nothing_else():
    trace = agent_trace(sessions=6, ramp=1, mix=AgentMix(systems=2, turns=3), seed=0)
    keys = [s.key for session in trace.sessions for turn in session.turns for s in turn.segments]
    shared = [session.turns[0].segments[0].key for session in trace.sessions]
    assert len(set(shared)) == 2
    own = [key for key in keys if key not in shared]
    assert len(own) == len(set(own))


def test_no_request_of_an_agent_is_longer_than_its_window():
    for window in (5, 1000, 60_000):
        mix = AgentMix(system=3, window=window, context_spread=2.0, output_spread=3.0)
        trace = agent_trace(sessions=50, ramp=1, mix=mix, seed=0)
        assert trace.max_model_len <= window
        assert min(t.num_new_tokens for s in trace.sessions for t in s.turns) >= 1


def test_tokens_of_a_key_are_a_function_of_seed_and_key():
    tokens = SegmentTokens(1, 1000)
    (a, b), c = (tokens.column((Segment(k, 50),)) for k in (7, 8)), tokens.column((Segment(7, 20),))
    assert a[:80] == c
    assert a != b
    assert a == SegmentTokens(1, 1000).column((Segment(7, 50),))
    assert a != SegmentTokens(2, 1000).column((Segment(7, 50),))
    ids = unpack_ids(SegmentTokens(1, 1000).column((Segment(9, 20_001),)))
    assert len(ids) == 20_001
    assert max(ids) == 999
    assert min(ids) == 0
    assert np.mean(ids) == pytest.approx(499.5, rel=0.02)


@pytest.mark.parametrize("kind", ["poisson", "bursts", "closed", "agents"])
def test_every_drawn_kind_has_a_default_and_a_seed(kind):
    assert parse_trace(kind, seed=1) == parse_trace(kind, seed=1) != parse_trace(kind, seed=2)


_TURN = Turn(0.0, (Segment(1, 10),), 5)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"start_s": float("nan")}, "'a': start_s"),
        ({"start_s": -1.0}, "'a': start_s"),
        ({"turns": ()}, "'a': turns"),
        ({"turns": (_TURN, Turn(float("inf"), (), 1))}, "'a': turn 1: wait_s"),
        ({"turns": (Turn(0.0, (Segment(-1, 10),), 1),)}, r"'a': turn 0: Segment\(key=-1"),
        ({"turns": (Turn(0.0, (Segment(1, 1.5),), 1),)}, r"num_tokens=1.5\) must .*whole"),
        ({"turns": (Turn(0.0, (Segment(1, 1),), 1.5),)}, "num_output_tokens .* not 1.5"),
    ],
)
def test_a_session_that_makes_no_sense_is_named(options, named):
    session = Session(**({"session_id": "a", "start_s": 0.0, "turns": (_TURN,)} | options))
    with pytest.raises(TraceError, match=named):
        Trace(name="", sessions=(session,))


def test_sessions_are_distinct_and_seeds_can_be_drawn_by():
    session = Session(session_id="a", start_s=0.0, turns=(_TURN,))
    with pytest.raises(TraceError, match=r"two sessions .* 'a'"):
        Trace(name="", sessions=(session, session))
    with pytest.raises(TraceError, match="session"):
        Trace(name="", sessions=())
    for seed in (-1, 1 << 63):
        with pytest.raises(TraceError, match="seed"):
            Trace(name="", sessions=(session,), seed=seed)
        with pytest.raises(TraceError, match="seed"):
            parse_trace("poisson", seed=seed)


def test_options_reach_the_trace():
    trace = parse_trace("poisson:rate=5,duration=20,input=7,output=3,shared=2")
    assert trace.max_model_len == 12
    assert "rate=5" in trace.name
    assert "spread" in trace_kinds()["bursts"]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("poison", "'poison'.*poisson"),
        ("poisson:rte=3", "'rte'.*rate"),
        ("poisson:rate", "rate has no value"),
        ("poisson:rate=3,rate=4", "rate is given twice"),
        ("poisson:duration=1e9", "duration must be at most 100000000 seconds"),
        ("agents:think=1e9", "think must be at most"),
        ("agents:ramp=1e9", "ramp must be at most"),
        ("poisson:rate=80,duration=1e8", "8e\\+09 requests.*lower rate or duration"),
        ("bursts:size=100000000", "lower rate, duration or size"),
        ("closed:concurrency=100000,requests=1000", "lower concurrency or requests"),
        ("agents:sessions=10000000", "lower sessions or turns"),
        ("poisson:input=10000000000", "input must be at most 4194304"),
        ("agents:system=5000000", "system must be at most 4194304"),
        ("poisson:tenants=100000000", "tenants must be at most"),
        ("agents:window=100", "window must hold the 24000 tokens of a system prompt.* not 100"),
        ("poisson:rate=fast", "rate must be a number"),
        ("poisson:input=1.5", "input must be a whole number"),
        ("poisson:rate=0", "rate must be positive"),
        ("poisson:rate=nan", "rate must be positive"),
        ("poisson:input=0", "input must be at least 1"),
        ("poisson:spread=-1", "spread must not be negative"),
        ("poisson:rate=0.001,duration=1", "no request"),
        ("bursts:size=0", "size must be positive"),
        ("closed:concurrency=0", "concurrency must be positive"),
        ("agents:sessions=0", "sessions must be positive"),
        ("agents:ramp=-1", "ramp must not be negative"),
        ("agents:turns=0", "turns must be at least 1"),
        ("agents:think=inf", "think must not be negative"),
        ("mooncake", "path=FILE"),
        ("mooncake:path=/no/such/file", "/no/such/file"),
    ],
)
def test_invalid_tools_are_refused_by_field(text, named):
    with pytest.raises(TraceError, match=named):
        parse_trace(text)
