"""Commands of installed packages: the entry point group `openinfer.commands`."""

import argparse
from collections.abc import Callable
from typing import Any

from openinfer_contract import PluginGroup

AddCommand = Callable[[Any], None]
"""Adds a parser to the result of `argparse.ArgumentParser.add_subparsers`."""


def _tried(loaded: AddCommand) -> AddCommand:
    """Calls the function on a scratch parser first: if it raises, the real parser is unchanged."""
    loaded(argparse.ArgumentParser().add_subparsers())
    return loaded


COMMANDS: PluginGroup[AddCommand] = PluginGroup("openinfer.commands", "command", _tried)


def add_commands(commands: Any, wanted: str | None) -> None:
    """Adds the commands of installed packages to the application's parser.

    Args:
        commands: the result of `argparse.ArgumentParser.add_subparsers`.
        wanted: the command on the command line. If a package brings it, only that command is
            added, otherwise every command that loads.

    Raises:
        PluginError: the wanted command does not load.
    """
    if wanted is not None and wanted in COMMANDS.names():
        COMMANDS.load(wanted)(commands)
        return
    for add in COMMANDS.load_all().values():
        add(commands)
