"""Engines beside the model lines: `serve --engine NAME`, entry point group `openinfer.engines`."""

from typing import Protocol, cast

import msgspec

from openinfer.errors import UsageError
from openinfer_contract import PluginGroup
from openinfer_engine import LaunchSpec, ServePlan


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


ENGINES: PluginGroup[ServedEngine] = PluginGroup(
    "openinfer.engines", "engine", lambda loaded: cast(ServedEngine, loaded)
)


def load_engine(name: str) -> ServedEngine:
    """The installed engine of that name.

    Raises:
        UsageError: there is none; names the installed ones.
        PluginError: it does not load.
    """
    try:
        return ENGINES.load(name)
    except KeyError:
        pass  # the sentence below says so
    known = ", ".join(ENGINES.names())
    found = f"installed are: {known}" if known else "none is: pip install openinfer-sim brings sim"
    raise UsageError(f"--engine {name} is not installed; {found}")
