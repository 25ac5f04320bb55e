"""Errors of the engine.

EngineError
├── StepFailed           one step is lost; the executor continues with later steps
├── ExecutorDead         the executor cannot continue, and its engine ends
├── CheckpointNotFound   no checkpoint folder, or no readable config.json in it
├── NoModelLine          no installed model line serves the checkpoint
├── ModelLineConflict    several model lines serve it, and --model-line names none
├── OptionRejected       the engine or the model does not support an option's value
├── FlagRejected         a value from a file or a keyword argument does not fit its flag
├── AddressRejected      an address cannot be listened on or connected to
├── TraceFailed          a trace cannot be started, stopped or written
└── EngineStartError     an engine process did not start
"""

from collections.abc import Mapping

from openinfer_contract import OpenInferError


class EngineError(OpenInferError):
    """Root of this package's errors."""


class StepFailed(EngineError):
    """Nothing of one step may be used. Its requests fail; later steps continue."""


class ExecutorDead(EngineError):
    """The executor cannot run any further step. All live requests fail and the engine ends."""


class TraceFailed(EngineError):
    """A trace cannot be started, stopped or written."""


class CheckpointNotFound(EngineError):
    """A path has no readable checkpoint.

    Attributes:
        path: the checkpoint's path as it was given.
        reason: what is missing.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"no checkpoint at {path}: {reason}")
        self.path = path
        self.reason = reason


class NoModelLine(EngineError):
    """No installed model line serves the checkpoint.

    Attributes:
        architecture: architecture named in the checkpoint's config.json.
        refusals: each line's reason for refusing it, by the line's name.
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
        names: names of the lines.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__(
            f"{' and '.join(names)} both serve this checkpoint; choose with --model-line NAME"
        )
        self.names = names


class OptionRejected(EngineError):
    """An option has a value that the engine or the model does not support.

    Attributes:
        option: name of the field in its options struct.
        reason: why it is rejected, and which value would be accepted.
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
    """The configured plans need abilities that the executor lacks.

    Attributes:
        missing: for each ability that the executor lacks, the reason why plans need it.
    """

    def __init__(self, missing: Mapping[str, str]) -> None:
        listed = "; ".join(f"{name} ({reason})" for name, reason in missing.items())
        super().__init__(f"the executor lacks abilities that its plans would need: {listed}")
        self.missing = dict(missing)


class AddressRejected(EngineError):
    """An engine cannot listen on an address, or cannot be reached at it.

    Attributes:
        address: the address as it was given.
        reason: why it is rejected.
    """

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"address {address}: {reason}")
        self.address = address
        self.reason = reason


class EngineStartError(EngineError):
    """An engine process did not start.

    Attributes:
        kind: class name of the error that ended the start, such as `NoModelLine`; "Exited" or
            "Hung" if the process reported none.
        message: one sentence that says what to do.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
