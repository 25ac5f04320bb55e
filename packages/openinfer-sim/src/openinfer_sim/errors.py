"""Errors of the simulator. Each message says what is wrong and what to do.

OpenInferError
└── SimError
    ├── UnknownFigures  the tables have no such device or model
    ├── TraceError      a trace cannot be read or is invalid
    └── MissingExtra    an optional dependency is not installed
"""

from collections.abc import Iterable

from openinfer_contract import OpenInferError


class SimError(OpenInferError):
    """Base class of the simulator's errors."""


class UnknownFigures(SimError):
    """The tables have no such device or model.

    Attributes:
        name: The unknown name.
    """

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        super().__init__(f"unknown {kind} {name!r}; known are: {', '.join(known)}")
        self.name = name


class TraceError(SimError):
    """A trace cannot be read or is invalid."""


class MissingExtra(SimError):
    """An optional dependency is not installed.

    Attributes:
        extra: The extra of openinfer-sim that installs it.
    """

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} is not installed: pip install 'openinfer-sim[{extra}]'")
        self.extra = extra
