"""Flags on a command line: as arguments of an `argparse` parser, in `--help` and in a table."""

import argparse
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from openinfer_engine.flags._flag import Flag


def add_flags(
    parser: argparse.ArgumentParser, flags: Iterable[Flag], defaults: object = None
) -> None:
    """Adds flags to a parser. Only the flags that a user sets reach the parser's namespace.

    A flag takes exactly one value, a switch none. A list is repeated for more values
    (`--api-key a --api-key b`), so that it never takes the positional argument after it.

    Args:
        parser: gets the arguments.
        flags: what to add, in the order of `--help`.
        defaults: an object whose attributes, by `Flag.dest`, are shown instead of `Flag.default`.
    """
    for flag in flags:
        if flag.kind == "switch":
            _add_switch(parser, flag)
        else:
            _add_value(parser, flag, getattr(defaults, flag.dest, flag.default))


def _add_switch(parser: argparse.ArgumentParser, flag: Flag) -> None:
    for names, value, text in ((flag.names, True, flag.help), (flag.off, False, "the opposite")):
        if names:
            parser.add_argument(
                *names,
                action="store_const",
                const=value,
                dest=flag.dest,
                default=argparse.SUPPRESS,
                help=text.replace("%", "%%"),
            )


def _add_value(parser: argparse.ArgumentParser, flag: Flag, default: object) -> None:
    shown = "" if default is None or default == () else f" ({default})"
    parser.add_argument(
        *flag.names,
        action="append" if flag.kind == "list" else "store",
        type=_argument_type(flag),
        choices=flag.choices or None,
        metavar=None if flag.choices else flag.dest.upper(),
        dest=flag.dest,
        default=argparse.SUPPRESS,
        help=(flag.description + shown).replace("%", "%%"),  # argparse formats it
    )


def _argument_type(flag: Flag) -> Callable[[str], Any]:
    """Returns `Flag.parse` with errors whose message argparse shows."""

    def parse(text: str) -> Any:
        try:
            return flag.parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return parse


class FlagFormatter(argparse.HelpFormatter):
    """Help that names a flag's value once, after all of its spellings."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        value = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {value}"


def flag_table(flags: Iterable[Flag], defaults: Mapping[str, object] | None = None) -> str:
    """Returns a Markdown table of flags: spelling, other spellings, default, meaning.

    Args:
        flags: one row each.
        defaults: values by `Flag.dest` that are shown instead of `Flag.default`.
    """
    head = ("| flag | other spellings | default | meaning |", "|---|---|---|---|")
    return "\n".join((*head, *(_row(flag, defaults or {}) for flag in flags)))


def _row(flag: Flag, defaults: Mapping[str, object]) -> str:
    first, *others = (f"`{name}`" for name in flag.spellings)
    value = defaults.get(flag.dest, flag.default)
    text = str(value).lower() if isinstance(value, bool) else value
    default = "" if text is None or text == () else f"`{text}`"
    choices = f" ({', '.join(flag.choices)})" if flag.choices else ""
    return f"| {first} | {', '.join(others)} | {default} | {flag.description}{choices} |"
