"""Who was served, told to policies that ask for it."""

from openinfer_scheduler._policy import Policy, charge_of
from openinfer_scheduler._state import StepInFlight
from openinfer_scheduler._steady import SteadyRows


class Charges:
    """Reports what plans forward to a policy that has `charge`.

    Steady rows are reported together for all plans that had them, when the policy is asked for an
    order next: until then nobody can tell.

    Args:
        policy: who hears of it.
    """

    def __init__(self, policy: Policy) -> None:
        self._charge = charge_of(policy)
        self._steady: SteadyRows | None = None
        self._num_plans = 0
        """Plans of these rows that were not reported yet."""

    def add(self, step: StepInFlight, *, num_plans: int = 1) -> None:
        """A plan is complete, or several that are the same."""
        if self._charge is None:
            return
        first = 0
        if step.steady is not None:
            if step.steady is not self._steady:
                self.report()
                self._steady = step.steady
            self._num_plans += num_plans
            first = step.num_decode
        self._charge_rows(step, first, num_plans)

    def take_back(self, step: StepInFlight) -> None:
        """A plan is reverted."""
        self._charge_rows(step, 0, -1)

    def report(self) -> None:
        """Tells what was not told yet; to be called before the policy is asked for an order."""
        charge, steady = self._charge, self._steady
        if charge is not None and steady is not None:
            for stay in steady.stays:
                charge(stay.sequence, self._num_plans)
            self._steady, self._num_plans = None, 0

    def _charge_rows(self, step: StepInFlight, first: int, sign: int) -> None:
        charge = self._charge
        if charge is not None:
            for row, stay in zip(step.plan.rows[first:], step.stays[first:], strict=True):
                charge(stay.sequence, sign * row.num_tokens)
