from types import SimpleNamespace

from openinfer_scheduler.state._waiting_queue import WaitingQueue


def sequence(index, num_tokens=3):
    return SimpleNamespace(arrival_index=index, num_known_tokens=num_tokens)


def test_a_preempted_sequence_returns_to_its_place():
    queue = WaitingQueue()
    zero, one, two, three = (sequence(n) for n in range(4))
    for each in (zero, one, two, three):
        queue.push(each)
    queue.remove(zero)
    queue.remove(two)
    assert queue.sequences == [one, three]
    assert queue.num_tokens == 6
    queue.push(two)
    queue.push(zero)
    assert queue.sequences == [zero, one, two, three]
    assert len(queue) == 4
