"""Engines beside the model lines: `serve --engine NAME`, entry point group `openinfer.engines`."""

from importlib.metadata import entry_points
from typing import Protocol

import msgspec

from openinfer.errors import UsageError
from openinfer_engine import LaunchSpec, ServePlan

GROUP = "openinfer.engines"


class ServedEngine(Protocol):
    """What serves a checkpoint in place of a model line, in an engine process of its own."""

    name: str
    options: type[msgspec.Struct]
    """A frozen struct with a default for every field: the options this engine owns."""
    factory: str
    """`module:function` of an `openinfer_engine.ExecutorFactory`."""

    def plan(self, spec: LaunchSpec, /) -> ServePlan:
        """Decides what follows from the options alone.

        Raises:
            OptionRejected: an option is set that this engine does not honour.
        """


def load_engine(name: str) -> ServedEngine:
    """The installed engine of that name.

    Raises:
        UsageError: there is none; names the installed ones.
    """
    for point in entry_points(group=GROUP, name=name):
        engine: ServedEngine = point.load()
        return engine
    known = ", ".join(sorted(entry_points(group=GROUP).names))
    found = f"installed are: {known}" if known else "none is: pip install openinfer-sim brings sim"
    raise UsageError(f"--engine {name} is not installed; {found}")
