"""Errors of the simulator: each message is one sentence that says what to do.

OpenInferError
└── SimError
    ├── UnknownFigures  no such device or model in the tables
    ├── TraceError      a trace that cannot be read or makes no sense
    └── MissingExtra    an optional dependency is not installed
"""

from collections.abc import Iterable

from openinfer_contract import OpenInferError


class SimError(OpenInferError):
    """Root of the simulator's own errors."""


class UnknownFigures(SimError):
    """The tables do not know a device or a model.

    Attributes:
        name: what was asked for.
    """

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        super().__init__(f"no {kind} {name!r}; known are: {', '.join(known)}")
        self.name = name


class TraceError(SimError):
    """A trace that cannot be read or makes no sense."""


class MissingExtra(SimError):
    """An optional dependency is not installed.

    Attributes:
        extra: the extra of openinfer-sim that brings it.
    """

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} is not installed: pip install 'openinfer-sim[{extra}]'")
        self.extra = extra
