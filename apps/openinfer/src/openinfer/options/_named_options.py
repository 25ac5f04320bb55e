"""Converter of configuration keys and keyword arguments to values of flags."""

from collections.abc import Iterable
from typing import Any

from openinfer.errors import UsageError
from openinfer.options._flags import FLAGS
from openinfer_engine import Flag, FlagRejected, read_flags

_FLAGS = {name.lstrip("-"): flag for flag in FLAGS for name in flag.spellings}


def find_flag(name: str) -> Flag | None:
    """Returns the flag with this spelling, without leading dashes; `_` is the same as `-`."""
    return _FLAGS.get(name.replace("_", "-"))


def named_options(
    given: Iterable[tuple[str, Any]], where: str = ""
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Splits options into values of `FLAGS` and options that only a model line can know.

    Args:
        given: names and values. None leaves an option at its default.
        where: beginning of messages, such as the name of the file.

    Returns:
        Values by `Flag.dest`, and the other options by name.

    Raises:
        UsageError: a value does not convert, or a flag is given under two names.
    """
    try:
        return read_flags(FLAGS, given)
    except FlagRejected as error:
        raise UsageError(f"{where}{error}") from error


def same_option(where: str, first: str, second: str) -> UsageError:
    """Returns the error for one option under two names."""
    return UsageError(f"{where}{first} and {second} are the same option; leave one of them out")
