from openinfer_scheduler.state._slots import Slots


def test_low_slots_are_taken_first_and_ends_announced_once():
    slots = Slots(3)
    assert [slots.take(), slots.take()] == [0, 1]
    slots.release(0)
    assert slots.num_free == 2
    assert slots.num_used == 2, "the executor still holds it"
    assert slots.take() == 0
    assert slots.take_ends() == (0,)
    assert slots.take_ends() == ()
