"""The part of an order that makes a policy starvation-free by age."""

from collections.abc import Iterable, Iterator, Sequence

from openinfer_scheduler.state._sequence import SequenceState


def overdue_first(
    sequences: Sequence[SequenceState], arrived_by: float, ranked: Iterable[SequenceState]
) -> Iterator[SequenceState]:
    """Those at the front of sequences, oldest first, that arrived by then; the others as ranked.

    Args:
        sequences: oldest first.
        arrived_by: monotonic seconds.
        ranked: the same in another order, looked at once those overdue have had their turn.
    """
    last = -1
    for sequence in sequences:
        if sequence.arrival > arrived_by:
            break
        yield sequence
        last = sequence.arrival_index
    for sequence in ranked:
        if sequence.arrival_index > last:
            yield sequence
