"""What researchers replace: the order of sequences, the size of chunks, the choice of victims.

The core owns budgets, blocks, reservation and aborts, so that a policy can be bad but not wrong.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from inspect import signature
from typing import Any, Protocol

from openinfer_contract import PluginGroup
from openinfer_scheduler.errors import UnknownPolicy, UnusablePolicy
from openinfer_scheduler.state._sequence import SequenceState

Charge = Callable[[SequenceState, int], None]


class Policy(Protocol):
    """Decides who goes first, how much of a prompt a step takes, and who makes room.

    Called from the step thread inside `Scheduler.plan`. What it is given belongs to the core: read
    it, and expect it to be over by the next call. Of a `SequenceState` it may read the attributes
    and properties that its docstring names.

    What a policy raises or answers wrongly becomes a `PolicyError`: the plan being made is lost,
    and no more. An engine logs it and goes on first come, first served; a simulation ends with it.

    A policy that needs to know who was served may have a method `charge` beside these three; see
    `ChargedPolicy`.
    """

    def order(self, sequences: Sequence[SequenceState], now: float, /) -> Iterable[SequenceState]:
        """The same sequences, first to be served first.

        Called at most once a plan for the running sequences, not while all of them decode and find
        room, and at most once for the waiting ones, if a slot is free. Both arrive oldest first
        (by `arrival_index`), so that returning the argument is first come, first served. The core
        serves decode rows before prefill chunks and running prefills before waiting ones, each
        kind in this order, and stops admitting at the first waiting sequence that does not fit:
        nothing overtakes. It takes no more of the waiting ones than it looks at, so a generator
        that ranks as it goes saves the rest.
        """

    def chunk(self, sequence: SequenceState, max_tokens: int, /) -> int:
        """Tokens of the next prefill chunk of `sequence`; the core clamps to [1, `max_tokens`].

        `max_tokens` is what the step's budget, `max_chunk_tokens` and the sequence's own known
        tokens leave.
        """

    def victim(self, candidates: Sequence[SequenceState], /) -> SequenceState:
        """Which of `candidates` gives its blocks back, to be recomputed later.

        `candidates` is not empty and in the order of `order`: the running sequences that come
        after the one that needs blocks. The first of all is therefore never a victim, and always
        progresses.
        """


class ChargedPolicy(Policy, Protocol):
    """A policy that hears what each sequence gets."""

    def charge(self, sequence: SequenceState, num_tokens: int, /) -> None:
        """Plans forward `num_tokens` of `sequence`; negative where a plan is reverted.

        Of a prompt it is called when the plan is complete. What a sequence decodes is told for
        many plans together: when it leaves its slot, and in turn before `order` is called, at the
        latest 64 steps later. An exception where a sequence leaves its slot is raised by the next
        plan.
        """


def check_policy(policy: object) -> None:
    """Looks for the methods of `Policy`, and at what they take.

    Raises:
        TypeError: it is no policy.
    """
    if isinstance(policy, type):
        raise TypeError(f"{policy.__qualname__} is a class: a policy is an instance of one")
    for name, num_arguments in (("order", 2), ("chunk", 2), ("victim", 1)):
        method = getattr(policy, name, None)
        if not callable(method):
            raise TypeError(f"it has no method {name}, as every openinfer_scheduler.Policy has")
        try:
            signature(method).bind(*range(num_arguments))
        except TypeError:
            raise TypeError(f"{name} does not take what Policy.{name} takes") from None
        except ValueError:
            pass  # compiled code need not say what it takes


def _made(kind: Any) -> Policy:
    """A policy of this class, which may be anything at all.

    Raises:
        TypeError: it is no policy. Whatever else its class raises.
    """
    policy: Policy = kind()
    check_policy(policy)
    return policy


POLICIES: PluginGroup[Policy] = PluginGroup("openinfer.schedulers", "scheduling policy", _made)


def charge_of(policy: Policy) -> Charge | None:
    """The policy's `charge`, if it has one."""
    charge: Charge | None = getattr(policy, "charge", None)
    return charge


def least_urgent(candidates: Sequence[SequenceState]) -> SequenceState:
    """The usual victim: of the least urgent (highest `priority` value) the youngest."""
    return max(candidates, key=lambda s: (s.request.priority, s.arrival_index))


def installed_policies() -> tuple[str, ...]:
    """Names that `load_policy` knows, sorted. Imports none of them."""
    return POLICIES.names()


def load_policy(name: str) -> Policy:
    """Imports and builds a policy.

    Args:
        name: of an installed policy, or `module:Class` for any class that can be imported; for
            these the current folder is on the path meanwhile, behind all that is installed.

    Raises:
        UnknownPolicy: naming the installed ones.
        PluginError: the installed policy of that name does not load, or is none.
        UnusablePolicy: the class that was named cannot be made, or lacks methods.
    """
    try:
        return POLICIES.load(name)
    except KeyError:
        pass  # no installed one has this name
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise UnknownPolicy(name, installed_policies())
    with _current_folder_on_path():
        try:
            found = getattr(import_module(module_name), attribute)
        except (ImportError, AttributeError) as error:
            raise UnknownPolicy(name, installed_policies(), str(error)) from error
        except Exception as error:  # a stranger's module may raise anything
            raise UnusablePolicy(name, f"its module raised {brief(error)}") from error
        try:
            return _made(found)
        except Exception as error:
            raise UnusablePolicy(name, f"it cannot be used, {brief(error)}") from error


@contextmanager
def _current_folder_on_path() -> Iterator[None]:
    # A console script has the script's folder on the path, an engine's process another one. No
    # longer than this: a folder there may be called like a library that is looked for later.
    sys.path.append(here := os.getcwd())
    try:
        yield
    finally:
        # The last one: the path may have had it before.
        del sys.path[len(sys.path) - 1 - sys.path[::-1].index(here)]


def brief(error: Exception) -> str:
    """What a stranger's code raised; its name alone where it cannot be printed."""
    kind = type(error).__name__
    try:
        return f"{kind}: {error}"
    except Exception:
        return kind
