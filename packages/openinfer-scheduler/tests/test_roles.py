"""Engines that only prefill or only decode, and requests that wait for a tier."""

import pytest

from openinfer_contract import Failed


def test_an_engine_that_prefills_takes_single_tokens_only(loop):
    subject = loop(role="prefill")
    rejected = subject.add([1, 2, 3], max_tokens=2)
    assert (rejected.kind, rejected.field) == ("unsupported", "stop.max_tokens")
    assert "one token" in rejected.message
    subject.add([1, 2, 3], max_tokens=1)
    subject.add([4, 5, 6], max_tokens=3, num_output_prefix=2, request_id="resumed")
    subject.run()
    assert subject.ends["resumed"].num_output_tokens == 3


def test_an_engine_that_prefills_plans_no_decode_row(loop):
    """The test executor fails on a decode row; this test makes many plans."""
    subject = loop(role="prefill", num_blocks=12, max_chunk_tokens=5)
    for number in range(20):
        subject.add([number] * (1 + 2 * number), max_tokens=1)
    subject.run()
    assert all(len(output) == 1 for output in subject.output.values())


def prefilled(loop, prompt):
    """Returns an engine that only decodes, with the blocks of a prompt in its cache."""
    subject = loop(role="decode", num_blocks=300)
    for end in range(4, len(prompt) + 1, 4):
        subject.add(prompt[:end], max_tokens=1)
        subject.run()
    return subject


def test_an_engine_that_decodes_needs_the_prompt(loop):
    subject = prefilled(loop, range(14))
    rejected = subject.add([30] * 14)
    assert (rejected.kind, rejected.field) == ("unsupported", "kv_transfer")
    assert subject.scheduler.load().num_rejected == 1
    subject.add([*range(14), 20], max_tokens=6, num_output_prefix=1, request_id="here")
    plan = subject.plan()
    assert [row.num_tokens for row in plan.rows] == [3], "twelve were cached, the rest is computed"
    subject.run()


def test_a_prompt_that_was_not_loaded_fails_as_retryable(loop):
    subject = prefilled(loop, range(14))
    subject.add([30] * 14, request_id="lost", is_loading=True)
    subject.add([*range(14), 21], request_id="came", is_loading=True, max_tokens=3)
    effects = subject.loaded("lost", "came", "unknown")
    ((request_id, event),) = effects
    assert request_id == "lost"
    assert isinstance(event.end, Failed)
    assert event.end.is_retryable
    subject.run()
    assert subject.ends["came"].num_output_tokens == 3


def started(plan):
    return [] if plan is None else [start.request.request_id for start in plan.starts]


def test_a_request_that_loads_is_passed(loop):
    subject = loop(num_blocks=300)
    for name, is_loading in (("a", True), ("b", False), ("c", True), ("d", False)):
        subject.add([ord(name) % 40] * 6, max_tokens=2, request_id=name, is_loading=is_loading)
    assert started(subject.plan()) == ["b", "d"]
    subject.loaded("c")
    assert started(subject.plan()) == ["c"]
    assert subject.loaded("c", "b", "unknown") == []
    subject.loaded("a")
    subject.run()


def test_a_loading_request_keeps_its_place(loop):
    subject = loop(max_num_seqs=1, num_blocks=300)
    subject.add([1], max_tokens=3, request_id="running", ignore_eos=True)
    subject.plan()
    subject.add([2], request_id="loading", is_loading=True)
    subject.add([3], request_id="later")
    subject.loaded("loading")
    while not started(plan := subject.plan()):
        subject.complete()
    assert started(plan) == ["loading"]
    subject.run()


@pytest.mark.parametrize("end", ["abort", "deadline", "fail_all"])
def test_a_loading_request_ends_like_any_other(loop, end):
    subject = loop(max_queued_requests=1)
    subject.add([1, 2], is_loading=True, deadline=subject.now + 1.0)
    assert subject.plan() is None, "nothing can run"
    assert subject.scheduler.has_work
    assert subject.add([3]).kind == "overloaded", "it counts as waiting"
    if end == "abort":
        subject.abort("r0")
    elif end == "deadline":
        subject.take(subject.scheduler.expire(subject.now + 2.0))
    else:
        subject.take(subject.scheduler.fail_all("gone", subject.now))
    assert subject.loaded("r0") == []
    subject.run()
