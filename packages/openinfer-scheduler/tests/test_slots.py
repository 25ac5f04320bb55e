from openinfer_scheduler.state._slots import Slots


def test_low_slots_first_and_ends_are_said_once():
    slots = Slots(3)
    assert [slots.take(), slots.take()] == [0, 1]
    slots.give_back(0)
    assert slots.num_free == 2
    assert slots.num_used == 2, "the executor still holds it"
    assert slots.take() == 0
    assert slots.announce() == (0,)
    assert slots.announce() == ()


def test_revert_restores_what_the_executor_knows():
    slots = Slots(2)
    slots.take()
    slots.give_back(0)
    slots.take()
    ends = slots.announce()
    slots.revert_take(0)
    slots.revert_announce(ends)
    assert slots.has_over
    assert slots.announce() == (0,)
    assert slots.num_free == 2
    assert slots.num_used == 0


def test_revert_of_a_start_that_ended_meanwhile():
    slots = Slots(2)
    slot = slots.take()
    slots.announce()
    slots.give_back(slot)
    slots.revert_give_back(slot)
    slots.revert_announce(())
    assert not slots.has_over
