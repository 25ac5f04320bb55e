"""The protocol of scheduling policies: order of sequences, size of chunks, choice of victims.

The scheduler itself owns budgets, blocks, reservation and aborts. A bad policy can therefore waste
time or be unfair, but it cannot make a request's output wrong.
"""

from collections.abc import Callable, Iterable, Sequence
from inspect import signature
from typing import Protocol

from openinfer_scheduler.state._sequence import SequenceState

Charge = Callable[[SequenceState, int], None]


class Policy(Protocol):
    """Decides which sequence goes first, how long a prefill chunk is, and which one is preempted.

    Called from the step thread inside `Scheduler.plan`. Arguments belong to the scheduler: a policy
    reads them and must not rely on them after the call. It may read the documented attributes and
    properties of `SequenceState`.

    A policy that raises or breaks its contract is replaced: the scheduler keeps the first
    `PolicyError` for `Scheduler.take_policy_error` and serves requests first come, first served
    from then on. No request fails. An engine logs the error; a simulation ends with it.

    A policy that needs to know how many tokens each sequence was served may also have a method
    `charge`, see `ChargedPolicy`.
    """

    def order(self, sequences: Sequence[SequenceState], now: float, /) -> Iterable[SequenceState]:
        """Returns the given sequences in the order in which to serve them.

        Called at most once a plan for the running sequences, and not at all while all of them
        decode and find blocks. Called at most once a plan for the waiting sequences, if a slot is
        free; the argument is then a `WaitingSnapshot`. Both are in order of arrival
        (`arrival_index`), so returning the argument is first come, first served.

        The scheduler serves decode rows before prefill chunks and running prefills before waiting
        sequences, each kind in the returned order. It stops admitting at the first waiting sequence
        that does not fit, so none overtakes it. It reads only as much of the returned order as it
        needs, so a generator that ranks lazily saves work.
        """

    def chunk(self, sequence: SequenceState, max_tokens: int, /) -> int:
        """Returns the number of tokens of the next prefill chunk of `sequence`.

        The scheduler clamps it to [1, `max_tokens`]. `max_tokens` already respects the step's token
        budget, `max_chunk_tokens` and the number of known tokens.
        """

    def victim(self, candidates: Sequence[SequenceState], /) -> SequenceState:
        """Returns the candidate to preempt. It is recomputed later.

        `candidates` is not empty. It holds the running sequences after the one that needs blocks,
        in the order of `order`. The first sequence of that order is therefore never a candidate, so
        it always progresses.
        """


class ChargedPolicy(Policy, Protocol):
    """A policy that also receives the number of tokens that each sequence was served."""

    def charge(self, sequence: SequenceState, num_tokens: int, /) -> None:
        """Charges `sequence` for `num_tokens` more tokens that plans forward.

        Called for a prompt chunk when its plan is complete. Decoded tokens are charged for many
        plans together: when the sequence leaves its slot, and in rounds before `order` is called,
        at most 64 steps late. `num_tokens` is negative if drafts were charged and then rejected.
        """


def check_policy(policy: object) -> None:
    """Checks that an object has the methods of `Policy` with the right number of arguments.

    Raises:
        TypeError: the object is no policy.
    """
    if isinstance(policy, type):
        raise TypeError(f"{policy.__qualname__} is a class: a policy is an instance of one")
    for name, num_arguments in (("order", 2), ("chunk", 2), ("victim", 1)):
        method = getattr(policy, name, None)
        if not callable(method):
            raise TypeError(f"it has no method {name}, which openinfer_scheduler.Policy requires")
        try:
            signature(method).bind(*range(num_arguments))
        except TypeError:
            raise TypeError(
                f"{name} must take {num_arguments} arguments, as Policy.{name} does"
            ) from None
        except ValueError:
            pass  # compiled code need not have a signature


def charge_of(policy: Policy) -> Charge | None:
    """Returns the policy's method `charge`, or None if it has none."""
    charge: Charge | None = getattr(policy, "charge", None)
    return charge


def least_urgent(candidates: Sequence[SequenceState]) -> SequenceState:
    """Returns the candidate with the highest `priority` value; among equals the youngest."""
    return max(candidates, key=lambda s: (s.request.priority, s.arrival_index))
