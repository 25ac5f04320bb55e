"""Errors of the engine.

EngineError
├── StepFailed           one step is lost; the executor goes on with later steps
├── ExecutorDead         the executor is of no further use, and so is its engine
├── CheckpointNotFound   no checkpoint folder, or no readable config.json in it
├── NoModelLine          no installed model line serves the checkpoint; each says why
├── ModelLineConflict    several do, and none was named
├── OptionRejected       an option that is not honoured, or not with this model
├── UnsupportedPlans     the scheduler would plan what the executor cannot run
├── FlagRejected         a value of a configuration file or keyword argument does not fit its flag
├── AddressRejected      an address that an engine cannot listen on or be reached at
├── TraceFailed          a trace cannot be started, stopped or written
└── EngineStartError     an engine process did not start; carries what it said
"""

from collections.abc import Mapping

from openinfer_contract import OpenInferError


class EngineError(OpenInferError):
    """Root of this package's errors."""


class StepFailed(EngineError):
    """Nothing of one step may be used; its requests fail, later steps go on."""


class ExecutorDead(EngineError):
    """The executor is of no further use: everything fails and the engine ends."""


class TraceFailed(EngineError):
    """A trace cannot be started, stopped or written."""


class CheckpointNotFound(EngineError):
    """There is no readable checkpoint at a path.

    Attributes:
        path: where it was looked for.
        reason: what is missing.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"no checkpoint at {path}: {reason}")
        self.path = path
        self.reason = reason


class NoModelLine(EngineError):
    """No installed model line serves the checkpoint.

    Attributes:
        architecture: what the checkpoint calls itself.
        refusals: by line, why it does not serve it.
    """

    def __init__(self, architecture: str, refusals: Mapping[str, str]) -> None:
        said = "; ".join(f"{name}: {reason}" for name, reason in sorted(refusals.items()))
        super().__init__(
            f"no installed model line serves {architecture} ({said})"
            if refusals
            else f"no model line is installed that could serve {architecture}; "
            "install one, for example openinfer-qwen3"
        )
        self.architecture = architecture
        self.refusals = dict(refusals)


class ModelLineConflict(EngineError):
    """Several installed model lines serve the checkpoint.

    Attributes:
        names: the lines.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__(
            f"{' and '.join(names)} both serve this checkpoint; choose with --model-line NAME"
        )
        self.names = names


class OptionRejected(EngineError):
    """An option is set that is not honoured, or not with this model.

    Attributes:
        option: its name, as the struct spells it.
        reason: why not, and what would do.
    """

    def __init__(self, option: str, reason: str) -> None:
        super().__init__(f"{option} (--{option.replace('_', '-')}): {reason}")
        self.option = option
        self.reason = reason


class FlagRejected(EngineError):
    """A value from a configuration file or a keyword argument does not fit its flag.

    Attributes:
        name: the key or argument as the user wrote it.
        reason: what is wrong, and what to do.
    """

    def __init__(self, name: str, reason: str) -> None:
        is_predicate = reason.startswith(("must ", "and "))
        super().__init__(f"{name}{' ' if is_predicate else ': '}{reason}")
        self.name = name
        self.reason = reason


class UnsupportedPlans(EngineError):
    """The scheduler would plan what the executor cannot run.

    Attributes:
        missing: Reason why each ability is needed that the executor lacks.
    """

    def __init__(self, missing: Mapping[str, str]) -> None:
        listed = "; ".join(f"{name} ({reason})" for name, reason in missing.items())
        super().__init__(f"the executor lacks abilities that its plans would need: {listed}")
        self.missing = dict(missing)


class AddressRejected(EngineError):
    """An address that an engine cannot listen on or be reached at.

    Attributes:
        address: as it was given.
        reason: why not.
    """

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"address {address}: {reason}")
        self.address = address
        self.reason = reason


class EngineStartError(EngineError):
    """An engine process did not start.

    Attributes:
        kind: name of the error that ended it, `NoModelLine` say; "Exited" or "Hung" if it said
            nothing.
        message: one sentence of what to do about it.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
