"""Limits on the number of adapters in use, and their slots."""

import pytest

from openinfer_contract import Adapter
from openinfer_scheduler.state._adapter_slots import AdapterSlots

ADAPTERS = {name: Adapter(name, name.encode() * 16) for name in "abcd"}


def test_an_idle_adapter_keeps_its_slot_until_another_needs_it():
    slots = AdapterSlots(2)
    assert [slots.take(b"a"), slots.take(b"b"), slots.take(b"a")] == [0, 1, 0]
    assert not slots.has_room(b"c")
    assert slots.has_room(b"a")
    slots.release(b"a")
    assert not slots.has_room(b"c"), "one of two users remains"
    slots.release(b"a")
    assert slots.has_room(b"c")
    assert slots.take(b"a") == 0, "its slot was not reassigned"
    slots.release(b"a")
    slots.release(b"b")
    assert slots.take(b"c") == 0, "the longest idle adapter loses its slot"
    assert slots.take(b"b") == 1


def test_without_a_limit_there_are_no_slots():
    slots = AdapterSlots(None)
    assert slots.has_room(b"x")
    assert slots.take(b"x") is None
    slots.release(b"x")


def adds(subject, names, **fields):
    for number, name in enumerate(names):
        adapter = ADAPTERS.get(name)
        subject.add([number], adapter=adapter, max_tokens=4, ignore_eos=True, **fields)


def started(plan):
    return [start.request.request_id for start in plan.starts]


def test_adapters_in_use_are_limited_and_the_base_model_passes(loop):
    subject = loop(max_adapters=1, max_num_seqs=6, num_blocks=300)
    adds(subject, ["a", "b", "", "a"])
    plan = subject.plan()
    # r1 waits for an adapter to become idle. r3 would keep that adapter in use; r2 needs none.
    assert started(plan) == ["r0", "r2"]
    assert [start.adapter_slot for start in plan.starts] == [0, None]
    seen = []
    while subject.scheduler.has_work:
        if (plan := subject.plan()) is not None:
            seen += [(s.request.request_id, s.adapter_slot) for s in plan.starts]
        if subject.in_flight:
            subject.complete()
    assert seen == [("r1", 0), ("r3", 0)]
    subject.run()


def test_sequences_share_the_slot_of_their_adapter(loop):
    subject = loop(max_adapters=2, max_num_seqs=6, num_blocks=300)
    adds(subject, ["a", "a", "b", "a", "b"])
    assert [start.adapter_slot for start in subject.plan().starts] == [0, 0, 1, 0, 1]
    subject.run()


@pytest.mark.parametrize("end", ["abort", "preempt"])
def test_slots_are_released_however_a_sequence_ends(loop, end):
    subject = loop(
        max_adapters=1, num_blocks=6, max_model_len=24, watermark=0.0, max_num_batched_tokens=40
    )
    subject.add([1] * 10, max_tokens=12, ignore_eos=True)
    subject.add([2] * 10, max_tokens=12, ignore_eos=True, adapter=ADAPTERS["a"])
    subject.add([3], max_tokens=2, ignore_eos=True, adapter=ADAPTERS["b"])
    if end == "abort":
        subject.plan()
        subject.abort("r1")
    subject.run()
    if end == "preempt":
        assert subject.ends["r1"].num_preemptions > 0
    assert not subject.scheduler._state.adapters._num_users
