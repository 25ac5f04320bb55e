"""Engines that replace a model line: `--engine NAME`, entry points `openinfer.engines`."""

from typing import Protocol, cast

import msgspec

from openinfer.errors import UsageError
from openinfer_contract import PluginGroup
from openinfer_engine import LaunchSpec, ServePlan


class ServedEngine(Protocol):
    """An engine that serves a checkpoint instead of a model line, in its own engine process."""

    name: str
    options: type[msgspec.Struct]
    """The engine's own options: a frozen struct with a default for every field."""
    factory: str
    """`module:function` of an `openinfer_engine.ExecutorFactory`."""

    def plan(self, spec: LaunchSpec, /) -> ServePlan:
        """Returns the plan that follows from the options alone.

        Raises:
            OptionRejected: an option is set that this engine does not honour.
        """


ENGINES: PluginGroup[ServedEngine] = PluginGroup(
    "openinfer.engines", "engine", lambda loaded: cast(ServedEngine, loaded)
)


def load_engine(name: str) -> ServedEngine:
    """Loads the installed engine of that name.

    Raises:
        UsageError: the engine is not installed. The message lists the installed ones.
        PluginError: the engine's entry point does not load.
    """
    try:
        return ENGINES.load(name)
    except KeyError:
        pass  # reported below
    known = ", ".join(ENGINES.names())
    found = f"installed are: {known}" if known else "none is: pip install openinfer-sim brings sim"
    raise UsageError(f"--engine {name} is not installed; {found}")
