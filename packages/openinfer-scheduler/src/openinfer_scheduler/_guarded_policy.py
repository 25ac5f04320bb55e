"""A policy whose every fault is a `PolicyError` that names it."""

import operator
import reprlib
import traceback
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath

from openinfer_scheduler._policy import Charge, Policy, brief, charge_of
from openinfer_scheduler.errors import PolicyError
from openinfer_scheduler.policies._fcfs import FCFS
from openinfer_scheduler.state._sequence import SequenceState


class GuardedPolicy:
    """What the scheduler asks in place of a policy, which may raise anything.

    Args:
        policy: asked until `fall_back`.

    Attributes:
        charge: as the policy's; None if it has none.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._inner_charge = charge_of(policy)
        self.charge: Charge | None = None if self._inner_charge is None else self._told

    def order(self, sequences: Sequence[SequenceState], now: float, /) -> Iterable[SequenceState]:
        """The policy's order, lazily where it is.

        Raises:
            PolicyError: the policy raised; also while the result is read.
        """
        try:
            ranked = self._policy.order(sequences, now)
        except Exception as error:
            raise self._raised("order", error) from error
        # Most policies answer a list, and then there is nothing left to go wrong. A subclass may
        # do anything while it is read.
        return ranked if type(ranked) is list else self._read(ranked)

    def chunk(self, sequence: SequenceState, max_tokens: int, /) -> int:
        """The policy's chunk.

        Raises:
            PolicyError: the policy raised, or answered no integer.
        """
        try:
            num_tokens = self._policy.chunk(sequence, max_tokens)
        except Exception as error:
            raise self._raised("chunk", error) from error
        try:
            return operator.index(num_tokens)
        except Exception as error:  # an object of the policy's own may raise any, printed or not
            shown = reprlib.repr(num_tokens)
            raise self.fault(f"chunk() returned {shown}, which is no integer") from error

    def victim(self, candidates: Sequence[SequenceState], /) -> SequenceState:
        """The policy's victim.

        Raises:
            PolicyError: the policy raised.
        """
        try:
            return self._policy.victim(candidates)
        except Exception as error:
            raise self._raised("victim", error) from error

    def fall_back(self) -> None:
        """First come, first served from now on; the policy is asked and told nothing more."""
        self._policy, self.charge = FCFS(), None

    def fault(self, what: str) -> PolicyError:
        """The error for what the policy did: a sentence without its subject."""
        kind = type(self._policy)
        return PolicyError(f"scheduling policy {kind.__module__}:{kind.__qualname__}: {what}")

    def _read(self, ranked: Iterable[SequenceState]) -> Iterator[SequenceState]:
        try:
            yield from ranked
        except Exception as error:
            raise self._raised("order", error) from error

    def _told(self, sequence: SequenceState, num_tokens: int, /) -> None:
        assert self._inner_charge is not None
        try:
            self._inner_charge(sequence, num_tokens)
        except Exception as error:
            raise self._raised("charge", error) from error

    def _raised(self, method: str, error: Exception) -> PolicyError:
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{PurePath(where.filename).name}, line {where.lineno}"
        return self.fault(f"{method}() raised {brief(error)} ({place})")
