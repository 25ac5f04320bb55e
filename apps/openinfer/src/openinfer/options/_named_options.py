"""Options by name, keys of a file or keyword arguments, as values of the table of flags."""

from collections.abc import Iterable
from typing import Any

from openinfer.errors import UsageError
from openinfer.options._flags import FLAGS
from openinfer_engine import Flag, FlagRejected, read_flags

_FLAGS = {name.lstrip("-"): flag for flag in FLAGS for name in flag.spellings}


def find_flag(name: str) -> Flag | None:
    """The flag that is spelled so but for the dashes in front; underscores stand for dashes."""
    return _FLAGS.get(name.replace("_", "-"))


def named_options(
    given: Iterable[tuple[str, Any]], where: str = ""
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Splits options into those of the table and those that only a model line can know.

    Args:
        given: names and values; None is as if it were not there.
        where: what messages begin with.

    Returns:
        Values by `FLAGS` destination, and what the table does not know, by name.

    Raises:
        UsageError: a value does not convert, or one flag is there under two names.
    """
    try:
        return read_flags(FLAGS, given)
    except FlagRejected as error:
        raise UsageError(f"{where}{error}") from error


def same_option(where: str, first: str, second: str) -> UsageError:
    """The error for one option under two names."""
    return UsageError(f"{where}{first} and {second} are the same option; leave one of them out")
