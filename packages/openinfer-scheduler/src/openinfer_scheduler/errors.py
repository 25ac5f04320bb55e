"""Errors of the scheduler.

SchedulerError (OpenInferError)
├── UnknownPolicy       no installed policy has this name; the installed ones are named
├── UnusablePolicy      it cannot be made without arguments, or lacks methods
├── StepOrderError      a step was applied, failed or reverted out of order
└── PolicyError         a policy raised, or returned something that is not its to return
"""

from openinfer_contract import OpenInferError


class SchedulerError(OpenInferError):
    """Root of the scheduler's errors."""


class UnknownPolicy(SchedulerError):
    """No installed package brings a policy of this name.

    Attributes:
        name: the name asked for.
        installed: the names there are, sorted.
    """

    def __init__(self, name: str, installed: tuple[str, ...], reason: str = "") -> None:
        known = ", ".join(installed) or "none"
        why = f" ({reason})" if reason else ""
        super().__init__(
            f"no scheduling policy {name!r}{why}; installed: {known}. A package brings one by the "
            "entry point group openinfer.schedulers; module:Class names any other"
        )
        self.name = name
        self.installed = installed


class UnusablePolicy(SchedulerError):
    """What a name stands for is no policy.

    Attributes:
        name: as it was given.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"--scheduling-policy {name}: {reason}")
        self.name = name


class StepOrderError(SchedulerError):
    """Steps are applied or failed oldest first and reverted newest first, each once."""


class PolicyError(SchedulerError):
    """A policy raised, or returned sequences it was not given, some twice, or left some out.

    Raised before anything of the plan has taken effect.
    """
