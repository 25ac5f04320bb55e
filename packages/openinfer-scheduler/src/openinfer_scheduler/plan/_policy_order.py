"""A policy's order of sequences, held to its contract."""

from collections.abc import Iterator
from itertools import islice
from operator import is_

from openinfer_scheduler._guarded_policy import GuardedPolicy
from openinfer_scheduler.state._scheduler_state import SchedulerState
from openinfer_scheduler.state._sequence import SequenceState

_NO_ORDER = "order() must return each of the sequences it was given once"


def ranked_running(policy: GuardedPolicy, state: SchedulerState, now: float) -> list[SequenceState]:
    """The running sequences as the policy ranks them.

    Raises:
        PolicyError: they are not each there once.
    """
    sequences = state.running
    # A copy: what a policy does to the list that it is given is its own affair. And one more than
    # there are, because an order may have no end.
    ranked = list(islice(policy.order(sequences.copy(), now), len(sequences) + 1))
    # As many as there are, and none is missing: then none is there twice or made up. By identity:
    # what is made up may not bear to be hashed or compared.
    if len(ranked) != len(sequences) or not (
        all(map(is_, ranked, sequences)) or set(map(id, ranked)) == set(map(id, sequences))
    ):
        raise policy.fault(_NO_ORDER)
    return ranked


def ranked_waiting(
    policy: GuardedPolicy, state: SchedulerState, now: float
) -> Iterator[SequenceState]:
    """The waiting sequences as the policy ranks them, each checked when its turn comes.

    Whoever was yielded may be started; what the policy has behind the last one that is looked at
    is nobody's concern.

    Raises:
        PolicyError: one is not waiting, is there twice, or is missing at the end.
    """
    sequences = state.waiting.now()
    num_waiting = len(sequences)
    live, seen = state.live, set[str]()
    for sequence in policy.order(sequences, now):
        if (
            not isinstance(sequence, SequenceState)
            or sequence.stay is not None
            or live.get(sequence.request_id) is not sequence
            or sequence.request_id in seen
        ):
            raise policy.fault(_NO_ORDER)
        seen.add(sequence.request_id)
        yield sequence
    if len(seen) != num_waiting:
        raise policy.fault(_NO_ORDER)
