"""A policy that is replaced by the default one when it raises or breaks its contract."""

import operator
import reprlib
import traceback
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath

from openinfer_scheduler._policy import Charge, Policy, charge_of
from openinfer_scheduler._policy_loading import brief, default_policy
from openinfer_scheduler.errors import PolicyError
from openinfer_scheduler.state._sequence import SequenceState


class GuardedPolicy:
    """A policy with a substitute: after its first fault, the default policy is asked instead.

    A fault does not raise, so that the plan being built is still completed.

    Args:
        policy: the policy to ask first.

    Attributes:
        charge: the policy's `charge`; None if it has none or was at fault.
        is_replaced: whether the policy was at fault.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._default = default_policy()  # loaded now, so that a broken installation fails early
        self._inner_charge = charge_of(policy)
        self._error: PolicyError | None = None
        self.charge: Charge | None = None if self._inner_charge is None else self._charge
        self.is_replaced = False

    def order(self, sequences: Sequence[SequenceState], now: float, /) -> Iterable[SequenceState]:
        """Returns the policy's order; it ends early if reading it raises."""
        try:
            ranked = self._policy.order(sequences, now)
        except Exception as error:
            self._replace_after("order", error)
            return ()
        # Reading a list cannot fail; reading any other type, even a subclass, runs foreign code.
        return ranked if type(ranked) is list else self._read(ranked)

    def chunk(self, sequence: SequenceState, max_tokens: int, /) -> int:
        """Returns the policy's chunk size, or `max_tokens` if the policy is at fault."""
        try:
            num_tokens = self._policy.chunk(sequence, max_tokens)
        except Exception as error:
            self._replace_after("chunk", error)
            return max_tokens
        try:
            return operator.index(num_tokens)
        except Exception as error:  # the object's own methods may raise anything
            shown = reprlib.repr(num_tokens)
            self.replace(f"chunk() returned {shown}, which is no integer", error)
            return max_tokens

    def victim(self, candidates: Sequence[SequenceState], /) -> SequenceState:
        """Returns the policy's victim, or the default policy's if the policy is at fault."""
        try:
            victim = self._policy.victim(list(candidates))
        except Exception as error:
            self._replace_after("victim", error)
        else:
            if any(victim is candidate for candidate in candidates):
                return victim
            self.replace("victim() returned a sequence that is no candidate")
        return self._policy.victim(candidates)

    def replace(self, fault: str, cause: Exception | None = None) -> None:
        """Replaces the policy by the default one.

        Args:
            fault: a phrase that continues the policy's name, such as "raised KeyError: 'a'".
            cause: the exception that it raised.
        """
        if self.is_replaced:
            return
        kind = type(self._policy)
        self._error = PolicyError(
            f"scheduling policy {kind.__module__}:{kind.__qualname__}: {fault}"
        )
        self._error.__cause__ = cause
        self._policy, self.charge, self.is_replaced = self._default, None, True

    def take_error(self) -> PolicyError | None:
        """Returns why the policy was replaced; None from the second call on."""
        error, self._error = self._error, None
        return error

    def _read(self, ranked: Iterable[SequenceState]) -> Iterator[SequenceState]:
        try:
            yield from ranked
        except Exception as error:
            self._replace_after("order", error)

    def _charge(self, sequence: SequenceState, num_tokens: int, /) -> None:
        if self.is_replaced or self._inner_charge is None:
            return
        try:
            self._inner_charge(sequence, num_tokens)
        except Exception as error:
            self._replace_after("charge", error)

    def _replace_after(self, method: str, error: Exception) -> None:
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{PurePath(where.filename).name}, line {where.lineno}"
        self.replace(f"{method}() raised {brief(error)} ({place})", error)
