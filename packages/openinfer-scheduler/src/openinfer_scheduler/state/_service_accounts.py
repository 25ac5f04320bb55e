"""How many tokens each sequence was served, for policies that have a method `charge`."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from operator import attrgetter

from openinfer_scheduler._guarded_policy import GuardedPolicy
from openinfer_scheduler.state._sequence import SequenceState, SlotTenancy

CHARGED_EVERY = 32
"""Length of a round in steps: each decoding sequence is charged once in it, if the policy is asked
for an order."""

_arrival = attrgetter("arrival_index")


class ServiceAccounts:
    """Charges of the policy for the tokens that plans forward.

    Each tenancy counts the positions that were charged (`num_charged`), so nothing is stored here.
    Prompt chunks are charged at once. Decoded tokens are charged for many plans together. Charging
    every sequence in one plan would make that plan slow, so a round charges a few running sequences
    per plan. A sequence that leaves its slot is charged for its remaining tokens.

    Between two charges of a sequence lie `CHARGED_EVERY` steps, and at most twice as many while
    others start: a sequence that starts during a round waits for the next one. Otherwise a stream
    of short requests could keep the round from ever returning to the long ones.

    Args:
        policy: the policy to charge.
    """

    def __init__(self, policy: GuardedPolicy) -> None:
        self._policy = policy
        self._charged_at_step = 0
        self._next = 0
        """The arrival index at which the round continues."""
        self._last = -1
        """The arrival index at which the round ends."""
        self._num_due = 0
        """Number of sequences due, multiplied by `CHARGED_EVERY` so that no fraction is lost."""

    def charge_round(self, running: Sequence[SequenceState], step_id: int) -> None:
        """Charges the running sequences whose turn it is; all of them after `CHARGED_EVERY` steps.

        Call it before the policy is asked for an order.

        Args:
            running: the running sequences in order of arrival.
            step_id: the step being planned.
        """
        if self._policy.charge is None or step_id == self._charged_at_step:
            return
        num_steps = step_id - self._charged_at_step
        self._charged_at_step = step_id
        if num_steps >= CHARGED_EVERY:
            self._num_due = 0
            turn = running
        else:
            due = self._num_due + num_steps * len(running)
            num, self._num_due = divmod(due, CHARGED_EVERY)
            turn = self._turn(running, num) if num else ()
        self.charge(s.tenancy for s in turn if s.tenancy is not None)

    def _turn(self, running: Sequence[SequenceState], num: int) -> Sequence[SequenceState]:
        """Returns the next `num` sequences by arrival; after the round's end it starts again."""
        start = bisect_left(running, self._next, key=_arrival)
        stop = bisect_right(running, self._last, key=_arrival)
        turn = running[start : min(start + num, stop)]
        if len(turn) < num:
            self._last = running[-1].arrival_index
            turn = [*turn, *running[: num - len(turn)]]
        self._next = turn[-1].arrival_index + 1
        return turn

    def charge(self, tenancies: Iterable[SlotTenancy]) -> None:
        """Charges the positions of these tenancies that were not charged before."""
        charge = self._policy.charge
        if charge is None:
            return
        for tenancy in tenancies:
            num_tokens = tenancy.num_planned - tenancy.num_charged
            if num_tokens:
                tenancy.num_charged = tenancy.num_planned
                charge(tenancy.sequence, num_tokens)
