"""Forced output tokens: forwarded together instead of sampled one by one."""

import pytest

from openinfer_contract import Finished, Grammar, pack_ids

GRAMMAR = Grammar(kind="json_object")


def until_first_token(subject, **fields):
    request_id = subject.add(range(6), grammar=GRAMMAR, ignore_eos=True, **fields)
    while not subject.output[request_id]:
        subject.step()
    return request_id


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_forced_tokens_are_forwarded_by_one_row(loop, depth):
    subject = loop(depth=depth)
    request_id = until_first_token(subject, max_tokens=20)
    before = subject.scheduler.load().step_id
    subject.force(request_id, 8)
    assert len(subject.output[request_id]) == 9
    plan = subject.plan()
    (row,) = plan.rows
    assert row.is_sampled
    assert row.needs_mask
    # With two steps in flight, the token sampled last is forwarded already; its sample is ignored.
    assert row.num_tokens == 10 - depth
    assert row.token_ids.tolist() == subject.output[request_id][-row.num_tokens :]
    subject.run()
    assert len(subject.output[request_id]) == 20
    assert subject.scheduler.load().step_id - before <= 20 - 9 + depth


@pytest.mark.parametrize("depth", [1, 2])
def test_forced_tokens_end_a_request_like_sampled_ones(loop, depth):
    subject = loop(depth=depth)
    request_id = until_first_token(subject, max_tokens=5)
    (event,) = [event for _, event in subject.force(request_id, 5)]
    assert event.num_tokens == 4
    assert isinstance(event.end, Finished)
    assert event.end.reason == "length"
    assert event.end.num_output_tokens == 5
    subject.run()
    assert subject.scheduler.load().num_output_tokens == 5


def test_a_stop_id_among_the_forced_ones_ends_there(loop):
    subject = loop()
    request_id = until_first_token(subject, max_tokens=20, stop_token_ids=(3,))
    seed = pack_ids([38, 3, 38])
    ((_, event),) = subject.scheduler.force(request_id, seed, subject.now)
    assert event.num_tokens == 2
    assert event.end.reason == "stop"
    assert event.end.stop_token_id == 3
    subject.take([(request_id, event)])
    while subject.in_flight:
        subject.complete()
    subject.cache.assert_idle()


def test_a_preempted_request_takes_no_forced_tokens(loop):
    subject = loop(num_blocks=6, max_num_seqs=2)
    first, second = (
        subject.add(range(8), grammar=GRAMMAR, ignore_eos=True, max_tokens=14) for _ in range(2)
    )
    while not subject.scheduler.load().num_preemptions:
        subject.step()
    forced = [subject.force(request_id, 3) for request_id in (first, second)]
    assert [] in forced
    subject.run()


@pytest.mark.parametrize("luck", range(30))
def test_crowds_with_forced_tokens_in_a_tiny_pool(crowd, luck):
    subject = crowd(luck, force=0.4, grammar=GRAMMAR, ignore_eos=True)
    assert subject.num_forced > 20


def test_requests_can_be_failed_one_by_one(loop):
    subject = loop()
    first, second = (subject.add(range(4), max_tokens=6, ignore_eos=True) for _ in range(2))
    subject.step()
    effects = subject.take(subject.scheduler.fail_some({first: "no", "unknown": "no"}, subject.now))
    assert [(request_id, event.end.message) for request_id, event in effects] == [(first, "no")]
    subject.run()
    assert isinstance(subject.ends[second], Finished)
