"""A policy's order of sequences, checked against its contract."""

from collections.abc import Iterator
from itertools import islice
from operator import is_

from openinfer_scheduler._guarded_policy import GuardedPolicy
from openinfer_scheduler.state._scheduler_state import SchedulerState
from openinfer_scheduler.state._sequence import SequenceState

_NO_ORDER = "order() must return each of the sequences it was given once"


def ranked_running(policy: GuardedPolicy, state: SchedulerState, now: float) -> list[SequenceState]:
    """Returns the running sequences in the policy's order, or by arrival if it is at fault."""
    sequences = state.running
    # The policy gets a copy, since it may change the list. An order may be endless, so at most one
    # more entry than there are sequences is read.
    ranked = list(islice(policy.order(sequences.copy(), now), len(sequences) + 1))
    # If the length is right and no sequence is missing, there are neither duplicates nor foreign
    # entries. Entries are compared by identity: foreign ones may raise when they are hashed or
    # compared.
    if len(ranked) == len(sequences) and (
        all(map(is_, ranked, sequences)) or set(map(id, ranked)) == set(map(id, sequences))
    ):
        return ranked
    policy.replace(_NO_ORDER)
    return sequences.copy()


def ranked_waiting(
    policy: GuardedPolicy, state: SchedulerState, now: float
) -> Iterator[SequenceState]:
    """Yields the waiting sequences in the policy's order, checking each when its turn comes.

    If the policy is at fault, yields the rest in order of arrival. The caller may start a sequence
    that was yielded. Sequences after the last one that is read are not checked.
    """
    snapshot = state.waiting.snapshot()
    num_waiting = len(snapshot)
    live, seen = state.live, set[str]()
    for sequence in policy.order(snapshot, now):
        if (
            not isinstance(sequence, SequenceState)
            or sequence.tenancy is not None
            or live.get(sequence.request_id) is not sequence
            or sequence.request_id in seen
        ):
            break
        seen.add(sequence.request_id)
        yield sequence
    else:
        if len(seen) == num_waiting:
            return
    policy.replace(_NO_ORDER)
    for sequence in list(state.waiting.sequences):
        if sequence.request_id not in seen:
            yield sequence
