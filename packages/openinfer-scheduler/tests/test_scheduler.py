import pytest

from openinfer_contract import Failed, Rejected
from openinfer_scheduler import StepOrderError


def test_impossible_requests_are_refused_with_the_numbers(loop):
    subject = loop(num_blocks=5, max_model_len=40)
    rejected = subject.add(range(40))
    assert (rejected.kind, rejected.field) == ("too_long", "prompt_token_ids")
    assert "40 tokens" in rejected.message
    assert "39" in rejected.message
    rejected = subject.add([1] * 10, max_tokens=12)
    assert rejected.kind == "too_long"
    for number in ("10 prompt", "12 output", "6 cache blocks", "has 5"):
        assert number in rejected.message
    assert subject.add([1] * 10, max_tokens=11) == "r0", "the last token needs no block"
    assert subject.scheduler.load().num_rejected == 2
    subject.run()


@pytest.mark.parametrize(("prompt", "prefix"), [([], 0), ([1, 2], 2), ([1] * 9, 8), ([1], -1)])
def test_nothing_to_read_or_generate(loop, prompt, prefix):
    rejected = loop().add(prompt, max_tokens=8, num_output_prefix=prefix)
    assert rejected.kind == "invalid"
    assert rejected.field == ("num_output_prefix" if prompt else "prompt_token_ids")


@pytest.mark.parametrize("max_tokens", [0, -1, float("nan")])
def test_a_request_for_no_token_is_refused_by_that_field(loop, max_tokens):
    rejected = loop().add([1, 2], max_tokens=max_tokens)
    assert (rejected.kind, rejected.field) == ("invalid", "stop.max_tokens")
    assert str(max_tokens) in rejected.message


def test_a_live_id_is_a_duplicate_and_an_ended_one_is_not(loop):
    subject = loop()
    assert subject.add([1, 2], request_id="a") == "a"
    assert subject.add([1, 2], request_id="a").kind == "duplicate"
    subject.plan()
    subject.abort("a")
    assert subject.scheduler.add(subject.requests["a"], 0.0) is None, "in flight, but ended"
    subject.scheduler.abort(["a"], 0.0)
    subject.run()


def test_the_intake_is_bounded(loop):
    subject = loop(max_queued_requests=2, max_queued_tokens=20, overload_retry_after_s=3.0)
    assert subject.add([1] * 30, max_tokens=2) == "r0", "one request always fits an empty queue"
    rejected = subject.add([2])
    assert (rejected.kind, rejected.retry_after_s) == ("overloaded", 3.0)
    for number in ("30 tokens", "1 tokens", "2 requests", "20 tokens"):
        assert number in rejected.message
    subject.plan()
    subject.abort("r0")
    assert subject.add([1] * 15) == "r1"
    assert subject.add([2] * 6).kind == "overloaded"
    assert subject.add([2]) == "r2"
    assert subject.add([3]).kind == "overloaded"
    subject.run()


def started(subject):
    while subject.plan() is not None:
        pass


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("stage", ["waiting", "prefill", "prefill twice", "decode", "decode twice"])
def test_abort_at_every_stage(loop, depth, stage):
    subject = loop(depth=depth, max_chunk_tokens=6)
    subject.add([9, 9], max_tokens=20, ignore_eos=True)
    subject.add(range(18), max_tokens=20, ignore_eos=True)
    if stage.startswith("prefill"):
        subject.plan()
        if stage == "prefill twice":
            started(subject)
    elif stage.startswith("decode"):
        while not subject.output["r1"]:
            subject.step()
        subject.plan()
        if stage == "decode twice":
            started(subject)
    known = list(subject.output["r1"])
    ((request_id, event),) = subject.abort("r1", "unknown")
    assert (request_id, event.end.reason) == ("r1", "abort")
    assert event.end.num_output_tokens == len(known)
    assert subject.abort("r1") == []
    subject.run()
    assert subject.output["r1"] == known
    assert len(subject.output["r0"]) == 20


def test_blocks_of_an_aborted_request_return_when_its_steps_have_completed(loop):
    subject = loop(num_blocks=9)
    subject.add([1] * 12, max_tokens=8, ignore_eos=True)
    assert len(subject.plan().rows) == len(subject.plan().rows) == 1
    subject.abort("r0")
    assert subject.cache.stats().num_used == 4
    subject.complete()
    assert subject.cache.stats().num_used == 4
    subject.complete()
    assert subject.cache.stats().num_used == 0
    subject.run()


def test_abort_all_and_fail_all(loop):
    subject = loop(max_num_seqs=2)
    for _ in range(4):
        subject.add([1, 2, 3])
    subject.plan()
    assert len(subject.take(subject.scheduler.abort_all(subject.now))) == 4
    for _ in range(3):
        subject.add([1, 2, 3])
    subject.step()
    effects = subject.take(subject.scheduler.fail_all("the engine is gone", subject.now))
    assert [event.end.is_retryable for _, event in effects] == [True] * 3
    subject.run()
    assert subject.scheduler.load().num_failed == 3


def test_a_deadline_ends_waiting_and_running_requests(loop):
    subject = loop(max_num_seqs=1)
    for name, lifetime_s in (("a", 0.01), ("b", 0.02), ("c", 9.0)):
        subject.add([1, 2], request_id=name, deadline=subject.now + lifetime_s, ignore_eos=True)
    subject.step()
    assert subject.scheduler.expire(subject.now) == []
    subject.now += 0.5
    effects = subject.take(subject.scheduler.expire(subject.now))
    assert [request_id for request_id, _ in effects] == ["a", "b"]
    assert all("deadline" in event.end.message for _, event in effects)
    assert all(event.end.field == "deadline" for _, event in effects)
    subject.run()
    assert subject.ends["c"].reason == "length"


def test_steps_go_in_order(loop):
    subject = loop()
    subject.add([1, 2, 3], ignore_eos=True)
    first, second = subject.plan(), subject.plan()
    with pytest.raises(StepOrderError):
        subject.scheduler.fail(second.step_id, "", 0.0)
    result = subject.executor.wait(first.step_id)
    subject.take(subject.scheduler.apply(result, subject.now))
    with pytest.raises(StepOrderError):
        subject.scheduler.apply(result, subject.now)
    subject.in_flight.popleft()
    subject.run()


def test_a_failed_step_fails_its_requests_and_only_those(loop):
    subject = loop(max_num_batched_tokens=18, max_num_seqs=3)
    subject.add(range(18), max_tokens=6, ignore_eos=True)
    subject.add(range(18), max_tokens=6, ignore_eos=True, seed=5)
    subject.add([30] * 4, max_tokens=6, ignore_eos=True)
    first, second = subject.plan(), subject.plan()
    assert [len(plan.starts) for plan in (first, second)] == [1, 2]
    assert second.starts[0].num_cached_tokens == 16, "it starts on blocks of the step that fails"
    subject.executor.fail_step = 1.0
    effects = subject.complete()
    assert [(name, type(event.end)) for name, event in effects] == [("r0", Failed)]
    subject.executor.fail_step = 0.0
    subject.run()
    assert subject.ends["r1"].num_preemptions == 1
    assert subject.ends["r2"].num_preemptions == 0
    assert subject.ends["r1"].reason == subject.ends["r2"].reason == "length"


def test_seeds_are_reproducible_and_kept(loop):
    def seeds(seed):
        subject = loop(seed=seed, num_blocks=6, max_model_len=20)
        for number in range(4):
            subject.add([number] * 4, max_tokens=16, seed=77 if number == 2 else None)
        subject.run()
        assert subject.scheduler.load().num_preemptions > 0
        return [subject.executor.seeds[f"r{n}"] for n in range(4)]

    first = seeds(1)
    assert first == seeds(1)
    assert first != seeds(2)
    assert first[2] == 77
    assert len(set(first)) == 4
    assert all(0 <= seed < 2**64 for seed in seeds(None))


def test_load_counts(loop):
    subject = loop(max_num_seqs=1, num_blocks=20)
    subject.add(range(9), max_tokens=3, ignore_eos=True)
    subject.add(range(9), max_tokens=3, ignore_eos=True)
    assert isinstance(subject.add([]), Rejected)
    subject.step()
    load = subject.scheduler.load()
    assert (load.num_running, load.num_waiting, load.num_waiting_tokens) == (1, 1, 9)
    assert (load.num_slots, load.num_total_blocks) == (1, 20)
    assert not load.is_idle
    subject.run()
    load = subject.scheduler.load()
    assert (load.num_prompt_tokens, load.num_cached_tokens, load.num_output_tokens) == (18, 8, 6)
    assert (load.num_finished, load.num_failed, load.num_rejected) == (2, 0, 1)


def test_an_ended_scheduler_has_nothing_to_do(loop):
    subject = loop()
    assert subject.plan() is None
    assert subject.scheduler.is_idle
    subject.add([1])
    assert not subject.scheduler.is_idle
    subject.run()
    assert subject.plan() is None


def test_deadlines_of_ended_requests_are_forgotten(loop):
    subject = loop()
    for _ in range(1000):
        request_id = subject.add([1], deadline=1e9)
        subject.abort(request_id)
    assert not subject.scheduler._state.deadlines
    late = subject.add([1], deadline=subject.now + 1.0)
    subject.take(subject.scheduler.expire(subject.now + 2.0))
    assert late in subject.ends


@pytest.mark.parametrize("depth", [1, 2])
def test_a_deadline_ends_a_preempted_request_wherever_it_is(loop, depth):
    """The preempted request waits again, or it still has a token in flight."""
    places = set()
    for num_actions in range(1, 30):
        subject = loop(
            num_blocks=6, max_num_batched_tokens=40, watermark=0.0, max_model_len=24, depth=depth
        )
        deadline = subject.now + 1.0
        subject.add([1] * 11, max_tokens=13, ignore_eos=True)
        subject.add([2] * 10, max_tokens=12, ignore_eos=True, deadline=deadline)
        for action in range(num_actions):
            if action % 3 < 2:
                subject.plan()
            elif subject.in_flight:
                subject.complete()
        state = subject.scheduler._state
        victim = state.live.get("r1")
        if victim is not None:
            place = "settling" if state.settling else "running" if victim.tenancy else "waiting"
            places.add((place, victim.num_preemptions > 0))
            subject.take(subject.scheduler.expire(deadline))
            assert isinstance(subject.ends["r1"], Failed)
        subject.run()
        assert subject.ends["r0"].reason == "length"
    assert ("waiting", True) in places
    assert depth == 1 or ("settling", True) in places


def test_an_arrival_in_the_future_counts_as_now(loop):
    subject = loop()
    subject.add([1, 2], max_tokens=1, arrival=subject.now + 1e6)
    assert subject.scheduler._state.live["r0"].arrival == subject.now
    subject.run()
