"""Flags outside a command line: keys of a configuration file, keyword arguments."""

from collections.abc import Iterable
from typing import Any

from openinfer_engine.errors import FlagRejected
from openinfer_engine.flags._flag import Flag


def read_flags(
    flags: Iterable[Flag], given: Iterable[tuple[str, Any]]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Splits named values into those of known flags, converted, and all others.

    A name is any spelling of a flag without the leading dashes; underscores and dashes are the
    same. A spelling that switches a flag off negates its value.

    Args:
        flags: the known flags.
        given: names and values, such as the items of a YAML mapping. Values that are None are
            skipped.

    Returns:
        The converted values by `Flag.dest`, and the unknown values by name.

    Raises:
        FlagRejected: a value does not convert, or one flag is named twice.
    """
    by_name = {name.lstrip("-"): flag for flag in flags for name in flag.spellings}
    values: dict[str, Any] = {}
    unknown: dict[str, Any] = {}
    names: dict[str, str] = {}
    for name, value in given:
        spelling = name.replace("_", "-")
        flag = by_name.get(spelling)
        if flag is None:
            unknown[name] = value
            continue
        if flag.dest in names:
            first = names[flag.dest]
            raise FlagRejected(first, f"and {name} are the same option; leave one of them out")
        names[flag.dest] = name
        if value is None:
            continue
        try:
            converted = flag.convert(value)
        except ValueError as error:
            raise FlagRejected(name, str(error)) from error
        values[flag.dest] = not converted if f"--{spelling}" in flag.off else converted
    return values, unknown
