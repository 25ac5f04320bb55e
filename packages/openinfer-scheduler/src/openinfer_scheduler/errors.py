"""Errors of the scheduler.

SchedulerError (OpenInferError)
├── UnknownPolicy       no installed policy has this name; the message names the installed ones
├── UnusablePolicy      the class cannot be made without arguments, or lacks methods
├── StepOrderError      a step was applied or failed out of order
└── PolicyError         a policy raised, or returned something that its contract does not allow
"""

from openinfer_contract import OpenInferError


class SchedulerError(OpenInferError):
    """Root of the scheduler's errors."""


class UnknownPolicy(SchedulerError):
    """No installed package has a policy of this name.

    Attributes:
        name: the name that was not found.
        installed: the installed names, sorted.
    """

    def __init__(self, name: str, installed: tuple[str, ...], reason: str = "") -> None:
        known = ", ".join(installed) or "none"
        why = f" ({reason})" if reason else ""
        super().__init__(
            f"no scheduling policy {name!r}{why}; installed: {known}. A package adds one with an "
            "entry point in group openinfer.schedulers; name any other class as module:Class"
        )
        self.name = name
        self.installed = installed


class UnusablePolicy(SchedulerError):
    """The named object is no policy.

    Attributes:
        name: the name as it was given.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"--scheduling-policy {name}: {reason}")
        self.name = name


class StepOrderError(SchedulerError):
    """A step was applied or failed out of order, or a second time."""


class PolicyError(SchedulerError):
    """A policy raised, or returned something that the contract of `Policy` does not allow."""
