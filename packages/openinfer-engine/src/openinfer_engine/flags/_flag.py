"""Flags of a command line: one row of a table of them, and how a parser takes it."""

import argparse
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from openinfer_engine.flags._values import (
    parse_count,
    parse_dtype,
    parse_float,
    parse_int,
    parse_json,
)

Kind = Literal["str", "int", "float", "count", "switch", "list", "dtype", "json"]

_CONVERTERS: Mapping[Kind, Callable[[str], Any]] = {
    "str": str,
    "int": parse_int,
    "float": parse_float,
    "count": parse_count,
    "list": str,
    "dtype": parse_dtype,
    "json": parse_json,
}


@dataclass(frozen=True, slots=True)
class Flag:
    """One option and every spelling of it."""

    dest: str
    names: tuple[str, ...]
    kind: Kind
    scope: str
    """What it is about, for who takes only some."""
    help: str
    off: tuple[str, ...] = ()
    """Spellings that switch a "switch" off."""
    choices: tuple[str, ...] = ()

    @property
    def spellings(self) -> tuple[str, ...]:
        """All of them, those that switch it off included."""
        return (*self.names, *self.off)

    def convert(self, text: str) -> Any:
        """The value, or one of a list's values, that a command line spells so.

        Raises:
            ValueError: it spells none.
        """
        return _CONVERTERS[self.kind](text)

    def add_to(self, parser: argparse.ArgumentParser, default: object = None) -> None:
        """Adds it to a parser; the namespace has it only where a user sets it.

        Args:
            parser: gets it.
            default: shown by the help, None where nothing is to be said of it.
        """
        common: dict[str, Any] = {"dest": self.dest, "default": argparse.SUPPRESS}
        if self.kind == "switch":
            rows = ((self.names, True, self.help), (self.off, False, "the opposite"))
            for names, value, text in rows:
                parser.add_argument(*names, action="store_const", const=value, help=text, **common)
            return
        shown = "" if default is None else f" ({default})"
        parser.add_argument(
            *self.names,
            nargs="+" if self.kind == "list" else None,
            type=self._argument_type,
            choices=self.choices or None,
            metavar=self.dest.upper() if not self.choices else None,
            help=(self.help + shown).replace("%", "%%"),  # argparse formats it
            **common,
        )

    def _argument_type(self, text: str) -> Any:
        """`convert`, for reasons that argparse repeats."""
        try:
            return self.convert(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error


def add_flags(
    parser: argparse.ArgumentParser, flags: Iterable[Flag], defaults: object = None
) -> None:
    """Adds flags to a parser; only those that a user sets reach its namespace.

    Args:
        parser: gets them.
        flags: rows of a table.
        defaults: has the values that the help shows, as attributes of the flags' destinations.
    """
    for flag in flags:
        flag.add_to(parser, getattr(defaults, flag.dest, None))


class FlagFormatter(argparse.HelpFormatter):
    """Names a value once, behind all spellings of its flag."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        value = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {value}"
