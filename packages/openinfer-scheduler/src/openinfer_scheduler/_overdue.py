"""The part of an order that makes a policy starvation-free by age."""

from collections.abc import Sequence

from openinfer_scheduler._sequence import SequenceState


def overdue_first(
    sequences: Sequence[SequenceState], arrived_by: float
) -> tuple[list[SequenceState], list[SequenceState]]:
    """Splits sequences, oldest first, into those at the front that arrived by then and the rest."""
    num = 0
    for sequence in sequences:
        if sequence.arrival > arrived_by:
            break
        num += 1
    return list(sequences[:num]), list(sequences[num:])
