"""Who was served, told to policies that ask for it."""

from collections.abc import Iterable

from openinfer_scheduler._policy import Policy, charge_of
from openinfer_scheduler._sequence import SequenceState, Stay

REPORTED_EVERY = 16
"""Steps after which decode rows are reported, where the policy is asked for an order."""


class Charges:
    """Reports what plans forward to a policy that has `charge`.

    A stay knows how many of its positions were reported, so nothing is kept here, and what a
    sequence has decoded is told for many plans together: of prompts the policy hears at once,
    of decode rows every `REPORTED_EVERY` steps, and of all when the sequence leaves its slot.

    Args:
        policy: who hears of it.
    """

    def __init__(self, policy: Policy) -> None:
        self._charge = charge_of(policy)
        self._reported_at = 0
        self._error: BaseException | None = None

    def report(self, running: Iterable[SequenceState], step_id: int) -> None:
        """Tells what running sequences were given, if that was not done lately.

        To be called before the policy is asked for an order.

        Raises:
            Exception: what the policy raised, here or when a sequence left its slot.
        """
        self.check()
        if self._charge is None or 0 <= step_id - self._reported_at < REPORTED_EVERY:
            return
        self._reported_at = step_id
        for sequence in running:
            if sequence.stay is not None:
                self._settle(sequence.stay)

    def check(self) -> None:
        """To be called in every plan.

        Raises:
            Exception: what the policy raised when a sequence left its slot.
        """
        error, self._error = self._error, None
        if error is not None:
            raise error

    def add(self, prefills: Iterable[Stay]) -> None:
        """These stays have chunks of their prompt in the plan that was made."""
        if self._charge is not None:
            for stay in prefills:
                self._settle(stay)

    def close(self, stays: Iterable[Stay]) -> None:
        """These stays leave their slots, or rows of theirs were taken back.

        What the policy raises is raised by the next `check` or `report`: whoever lets go of a
        sequence has more to do.
        """
        if self._charge is None:
            return
        for stay in stays:
            try:
                self._settle(stay)
            except Exception as error:
                self._error = error

    def _settle(self, stay: Stay) -> None:
        num_tokens = stay.num_planned - stay.num_charged
        if num_tokens and self._charge is not None:
            self._charge(stay.sequence, num_tokens)
            stay.num_charged = stay.num_planned
