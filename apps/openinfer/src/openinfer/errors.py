"""Errors of the application. Each message is one sentence that says what to do.

OpenInferError
└── AppError
    ├── UsageError         a flag or a config key that cannot be honoured
    ├── ModelNotFound      no such folder, installed checkpoint or hub repository
    ├── RemoteServerError  the server of --url did not respond as expected
    ├── RequestRejected    a prompt or a parameter that the engine cannot honour
    └── GenerationFailed   the engine failed
"""

from openinfer_contract import OpenInferError


class AppError(OpenInferError):
    """Base class of the application's errors."""


class UsageError(AppError):
    """A flag or a config key that cannot be honoured."""


class ModelNotFound(AppError):
    """No such model exists.

    Attributes:
        name: the name that the user gave.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"no model {name!r}: {reason}")
        self.name = name


class RemoteServerError(AppError):
    """The server of --url did not respond as expected."""


class RequestRejected(AppError):
    """A prompt or a parameter that the engine cannot honour.

    Attributes:
        field: the field at fault, by its name in `SamplingParams` or in the messages.
    """

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.field = field


class GenerationFailed(AppError):
    """The engine failed while it worked on a request."""
