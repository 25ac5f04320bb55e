"""Age limits, which make a policy starvation-free."""

from collections.abc import Iterable, Iterator, Sequence

from openinfer_scheduler import SequenceState


def overdue_first(
    sequences: Sequence[SequenceState], arrived_by: float, ranked: Iterable[SequenceState]
) -> Iterator[SequenceState]:
    """Yields the overdue sequences at the front of `sequences`, then the others as ranked.

    Args:
        sequences: in order of arrival.
        arrived_by: sequences that arrived at this time or before are overdue; monotonic seconds.
        ranked: the same sequences in another order; read after the overdue ones.
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
