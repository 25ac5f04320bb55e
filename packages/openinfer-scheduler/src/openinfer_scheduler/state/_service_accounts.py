"""Who was served, told to policies that ask for it."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from operator import attrgetter

from openinfer_scheduler._guarded_policy import GuardedPolicy
from openinfer_scheduler.errors import PolicyError
from openinfer_scheduler.state._sequence import SequenceState, Stay

REPORTED_EVERY = 32
"""Steps in which each decode row is reported once, where the policy is asked for an order."""

_arrival = attrgetter("arrival_index")


class Charges:
    """Reports what plans forward to a policy that has `charge`.

    A stay knows how many of its positions were reported, so nothing is kept here, and what a
    sequence has decoded is told for many plans together: of prompts the policy hears at once,
    of decode rows in turn, because all of them would make one plan slow, and of the rest when the
    sequence leaves its slot. Between two reports of a row lie `REPORTED_EVERY` steps, and at most
    twice as many where others come meanwhile: who comes during a round waits for the next one, or
    a crowd of short requests would keep the round from ever coming back to those that decode on.

    Args:
        policy: who hears of it.
    """

    def __init__(self, policy: GuardedPolicy) -> None:
        self._policy = policy
        self._reported_at = 0
        self._next = 0
        """The arrival index at which to go on."""
        self._last = -1
        """The arrival index at which the round ends."""
        self._num_due = 0
        """Rows to report, times `REPORTED_EVERY`."""
        self._error: PolicyError | None = None

    def report(self, running: Sequence[SequenceState], step_id: int) -> None:
        """Tells what some of the running sequences were given, or all if that is long ago.

        To be called before the policy is asked for an order.

        Args:
            running: in order of arrival.
            step_id: of the plan being made.

        Raises:
            PolicyError: the policy raised, here or when a sequence left its slot.
        """
        self.check()
        if self._policy.charge is None or step_id == self._reported_at:
            return
        # A step that was reverted is planned again, perhaps with rows that nobody was told of.
        num_steps = step_id - self._reported_at if step_id > self._reported_at else 1
        self._reported_at = step_id
        if num_steps >= REPORTED_EVERY:
            self._num_due = 0
            turn = running
        else:
            due = self._num_due + num_steps * len(running)
            num, self._num_due = divmod(due, REPORTED_EVERY)
            turn = self._turn(running, num) if num else ()
        for sequence in turn:
            if sequence.stay is not None:
                self._settle(sequence.stay)

    def _turn(self, running: Sequence[SequenceState], num: int) -> Sequence[SequenceState]:
        """The next so many, by arrival; where the round ends, those at the front again."""
        start = bisect_left(running, self._next, key=_arrival)
        stop = bisect_right(running, self._last, key=_arrival)
        turn = running[start : min(start + num, stop)]
        if len(turn) < num:
            self._last = running[-1].arrival_index
            turn = [*turn, *running[: num - len(turn)]]
        self._next = turn[-1].arrival_index + 1
        return turn

    def check(self) -> None:
        """To be called in every plan.

        Raises:
            PolicyError: the policy raised when a sequence left its slot.
        """
        error, self._error = self._error, None
        if error is not None and self._policy.charge is not None:
            raise error

    def add(self, prefills: Iterable[Stay]) -> None:
        """These stays have chunks of their prompt in the plan that was made."""
        if self._policy.charge is not None:
            for stay in prefills:
                self._settle(stay)

    def close(self, stays: Iterable[Stay]) -> None:
        """These stays leave their slots, or rows of theirs were taken back.

        What the policy raises is raised by the next `check` or `report`: whoever lets go of a
        sequence has more to do.
        """
        if self._policy.charge is None:
            return
        for stay in stays:
            try:
                self._settle(stay)
            except PolicyError as error:
                self._error = error

    def _settle(self, stay: Stay) -> None:
        num_tokens = stay.num_planned - stay.num_charged
        charge = self._policy.charge
        if num_tokens and charge is not None:
            charge(stay.sequence, num_tokens)
            stay.num_charged = stay.num_planned
