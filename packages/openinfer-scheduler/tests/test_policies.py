"""The order of each built-in policy, and its memory."""

from types import SimpleNamespace

import pytest

from openinfer_scheduler import Fair, LongestPrefixMatch, ShortestPrefillFirst, load_policy
from openinfer_scheduler.policies._flows import MAX_IDLE_FLOWS

PREFIX = list(range(16))


def start_order(subject, max_steps=400):
    """Runs to the end; returns ids in the order of their first start."""
    order = []
    for _ in range(max_steps):
        if not subject.scheduler.has_work:
            break
        while (plan := subject.plan()) is not None:
            order += [start.request.request_id for start in plan.starts]
        subject.complete()
    subject.run()
    return list(dict.fromkeys(order))


def one_at_a_time(loop, policy, **options):
    """Returns a loop whose only slot is taken, so that further requests wait."""
    settings = {"max_num_seqs": 1, "num_blocks": 300, "max_num_batched_tokens": 64} | options
    subject = loop(policy=policy, **settings)
    subject.add([*PREFIX, 30], max_tokens=12, request_id="first", ignore_eos=True)
    subject.step()
    return subject


def test_longest_prefix_match_starts_hits_first(loop):
    subject = one_at_a_time(loop, LongestPrefixMatch())
    for name, prompt in (
        ("cold", [31] * 9),
        ("half", [*PREFIX[:8], 32, 33]),
        ("whole", [*PREFIX, 34]),
        ("cold too", [35] * 9),
    ):
        subject.add(prompt, max_tokens=1, request_id=name)
    assert start_order(subject) == ["whole", "half", "cold", "cold too"]


def test_shortest_prefill_first_counts_uncached_tokens(loop):
    subject = one_at_a_time(loop, ShortestPrefillFirst())
    for name, prompt in (
        ("nine", [31] * 9),
        ("five of thirteen", [*PREFIX[:8], *[32] * 5]),
        ("three", [33] * 3),
        ("three too", [34] * 3),
    ):
        subject.add(prompt, max_tokens=1, request_id=name)
    assert start_order(subject) == ["three", "three too", "five of thirteen", "nine"]


@pytest.mark.parametrize("policy_class", [LongestPrefixMatch, ShortestPrefillFirst])
def test_overdue_requests_go_first(loop, policy_class):
    subject = one_at_a_time(loop, policy_class(max_wait_s=5.0))
    subject.add([31] * 9, max_tokens=1, request_id="overdue")
    subject.now += 5.0
    subject.add([*PREFIX, 34], max_tokens=1, request_id="liked")
    assert start_order(subject) == ["overdue", "liked"]


def test_a_running_prefill_lets_a_shorter_one_pass(loop):
    subject = loop(
        policy=ShortestPrefillFirst(), num_blocks=300, max_num_batched_tokens=8, max_chunk_tokens=6
    )
    subject.add([1] * 40, max_tokens=1, request_id="long")
    subject.plan()
    subject.add([2] * 12, max_tokens=1, request_id="short")
    done = []
    while subject.scheduler.has_work:
        subject.step()
        done += [name for name in subject.ends if name not in done]
    assert done == ["short", "long"]
    subject.run()


def test_estimates_are_renewed_but_not_all_in_one_plan(loop):
    subject = one_at_a_time(loop, LongestPrefixMatch())
    waiting = [subject.add([*PREFIX, number], max_tokens=1) for number in range(200)]
    probe = subject.scheduler._state.probe
    states = [subject.scheduler._state.live[name] for name in waiting]
    probe.begin_plan(5)
    hits = [state.num_hit_tokens for state in states]
    assert hits == [16] * 32 + [0] * 168
    for step in range(6, 12):
        probe.begin_plan(step)
        hits = [state.num_hit_tokens for state in states]
    assert hits == [16] * 200
    subject.scheduler.reset_prefix_cache()
    assert [state.num_hit_tokens for state in states] == [16] * 200, "estimates stay valid"
    for step in range(60, 67):
        probe.begin_plan(step)
        hits = [state.num_hit_tokens for state in states]
    assert hits == [0] * 200
    subject.run()


def test_estimates_hash_a_bounded_number_of_tokens_in_one_plan(loop):
    subject = one_at_a_time(loop, LongestPrefixMatch(), max_model_len=50_000, num_blocks=40_000)
    for number in range(4):
        subject.add([number] * 40_000, max_tokens=1)
    states = [subject.scheduler._state.live[f"r{number}"] for number in range(1, 5)]
    subject.scheduler._state.probe.begin_plan(9)
    assert [state.num_hit_tokens for state in states] == [0] * 4
    assert [state.keys is not None for state in states] == [True, False, False, False]
    subject.abort(*subject.requests)
    subject.run()


def shares(loop, policy, arrivals, *, num_steps=150):
    """Returns tokens forwarded by (tenant, session) while each always has requests waiting."""
    subject = loop(
        policy=policy, num_blocks=300, max_num_seqs=2, max_num_batched_tokens=16,
        max_queued_requests=200,
    )  # fmt: skip
    served = dict.fromkeys(arrivals, 0)
    flows = {}
    for _ in range(num_steps):
        for (tenant, session), (num_requests, prompt, max_tokens) in arrivals.items():
            waiting = sum(
                flows[name] == (tenant, session) for name in flows if name not in subject.ends
            )
            for _ in range(max(0, num_requests - waiting)):
                name = subject.add(
                    [subject.num_added % 39] * prompt,
                    max_tokens=max_tokens,
                    ignore_eos=True,
                    tenant=tenant,
                    session_id=session,
                )
                flows[name] = tenant, session
        subject.step()
    for name, end in subject.ends.items():
        # The last token is sampled and never forwarded.
        num_cached = dict(end.cached).get("device", 0)
        served[flows[name]] += end.num_prompt_tokens - num_cached + end.num_output_tokens - 1
    subject.abort(*subject.requests)
    subject.run()
    return served


def test_fair_gives_tenants_equal_shares_however_much_they_ask(loop):
    arrivals = {("greedy", ""): (30, 6, 4), ("modest", ""): (3, 6, 4)}
    served = shares(loop, Fair(), arrivals)
    assert served["modest", ""] == pytest.approx(served["greedy", ""], rel=0.1)
    unfair = shares(loop, load_policy("openinfer_scheduler:FCFS"), arrivals)
    assert unfair["greedy", ""] > 4 * unfair["modest", ""]


def test_fair_counts_tokens_and_not_requests(loop):
    arrivals = {("long", ""): (4, 12, 8), ("short", ""): (4, 3, 2)}
    served = shares(loop, Fair(), arrivals)
    assert served["short", ""] == pytest.approx(served["long", ""], rel=0.15)


def test_fair_divides_a_tenants_share_among_its_sessions(loop):
    arrivals = {
        ("a", "1"): (20, 6, 4), ("a", "2"): (2, 6, 4), ("b", "1"): (4, 6, 4),
    }  # fmt: skip
    served = shares(loop, Fair(), arrivals, num_steps=250)
    assert served["a", "1"] == pytest.approx(served["a", "2"], rel=0.15)
    assert served["b", "1"] == pytest.approx(served["a", "1"] + served["a", "2"], rel=0.15)


def test_fair_gives_no_credit_for_a_pause(loop):
    """A tenant that arrives late starts level with the others."""
    subject = one_at_a_time(loop, Fair())
    for number in range(40):
        subject.add([37, number % 39] * 3, max_tokens=3, tenant="early", ignore_eos=True)
    for _ in range(60):
        subject.step()
    num_left = sum(f"r{n}" not in subject.ends for n in range(1, 41))
    assert 10 < num_left < 35
    for number in range(20):
        subject.add([38, number] * 3, max_tokens=3, tenant="late", ignore_eos=True)
    order = [int(name[1:]) for name in start_order(subject)]
    first = [number > 40 for number in order[:16]]
    assert 6 <= sum(first) <= 10, "they take turns"


def served(policy, subject):
    """Returns the service of each tenant."""
    state = subject.scheduler._state
    state.accounts.charge(sequence.tenancy for sequence in state.running)
    policy._book()
    return policy._tenants._served


def test_fair_charges_planned_tokens(loop):
    policy = Fair()
    subject = loop(policy=policy, max_num_batched_tokens=40)
    subject.add([1] * 10, tenant="a", max_tokens=2, ignore_eos=True)
    subject.add([2] * 6, tenant="b", max_tokens=2, ignore_eos=True)
    subject.plan()
    assert served(policy, subject) == {"a": 10, "b": 6}
    subject.run()
    assert served(policy, subject) == {"a": 11, "b": 7}


def num_remembered(policy):
    """Returns the size of the largest table that the policy keeps."""
    kept = [policy._tenants, policy._sessions, policy._unbooked, policy._queues, policy._flows]
    return max(sum(map(len, policy._sessions.values())), *map(len, kept))


@pytest.mark.long
@pytest.mark.parametrize("is_aborted", [False, True])
@pytest.mark.parametrize("num_tenants", [10_000, 7])
def test_fair_forgets_idle_tenants_and_sessions(loop, monkeypatch, is_aborted, num_tenants):
    monkeypatch.setattr("openinfer_scheduler.policies._fair.MAX_IDLE_SESSIONS", 5000)
    policy = Fair()
    subject = loop(policy=policy, num_blocks=300, max_num_seqs=4, max_num_batched_tokens=64)
    most = 0
    for number in range(10_000):
        tenant, session = f"t{number % num_tenants}", f"s{number}"
        subject.add([1], max_tokens=1, tenant=tenant, session_id=session)
        if number % 100 == 99:
            subject.step()
            if is_aborted:
                subject.take(subject.scheduler.abort_all(subject.now))
            while subject.scheduler.has_work:
                subject.step()
            most = max(most, num_remembered(policy))
    assert most < 5000 + MAX_IDLE_FLOWS + 200


def test_fair_books_charges_although_no_request_ever_waits():
    policy = Fair()
    for number in range(2 * MAX_IDLE_FLOWS):
        request = SimpleNamespace(tenant="t", session_id=f"s{number}")
        policy.charge(SimpleNamespace(request=request), 1)
        assert len(policy._unbooked) <= MAX_IDLE_FLOWS


@pytest.mark.parametrize(
    "policy", ["FCFS", "LongestPrefixMatch", "ShortestPrefillFirst", "Fair", "Priority"]
)
def test_the_least_urgent_and_of_them_the_youngest_is_preempted(loop, policy):
    subject = loop(
        policy=load_policy(f"openinfer_scheduler:{policy}"), num_blocks=12, max_model_len=28,
        max_num_seqs=4, max_num_batched_tokens=40, watermark=0.0, depth=1,
    )  # fmt: skip
    for number, priority in enumerate((0, 2, 2, 1)):
        subject.add([10 + number] * 8, max_tokens=20, priority=priority, ignore_eos=True)
    while not any(s.num_preemptions for s in subject.scheduler._state.live.values()):
        subject.step()
    preempted = [s.request_id for s in subject.scheduler._state.live.values() if s.num_preemptions]
    assert preempted == ["r2"]
    subject.run()


def test_fair_takes_turns_within_a_plan(loop):
    subject = loop(policy=Fair(), max_num_seqs=4, max_num_batched_tokens=64, num_blocks=300)
    for number in range(4):
        subject.add([number] * 6, tenant="early", max_tokens=2)
    for number in range(4):
        subject.add([10 + number] * 6, tenant="late", max_tokens=2)
    started = [start.request.tenant for start in subject.plan().starts]
    assert started == ["early", "late", "early", "late"]
    subject.run()
