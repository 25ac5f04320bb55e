"""Commands that installed packages bring: entry point group `openinfer.commands`."""

import argparse
from collections.abc import Callable
from typing import Any

from openinfer_contract import PluginGroup

AddCommand = Callable[[Any], None]
"""Adds a parser to what `argparse.ArgumentParser.add_subparsers` returns."""


def _tried(loaded: AddCommand) -> AddCommand:
    """Adds it to a parser that is thrown away, so that one that fails leaves nothing behind."""
    loaded(argparse.ArgumentParser().add_subparsers())
    return loaded


COMMANDS: PluginGroup[AddCommand] = PluginGroup("openinfer.commands", "command", _tried)


def add_commands(commands: Any, wanted: str | None) -> None:
    """Adds installed commands to the application's.

    Args:
        commands: what `argparse.ArgumentParser.add_subparsers` returned.
        wanted: the command that was given. If a package brings one of that name, it is added
            alone; otherwise all that load.

    Raises:
        PluginError: the command that was given does not load.
    """
    if wanted is not None and wanted in COMMANDS.names():
        COMMANDS.load(wanted)(commands)
        return
    for add in COMMANDS.load_all().values():
        add(commands)
