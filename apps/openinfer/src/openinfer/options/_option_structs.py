"""Options structs, made from the values of a command line, a configuration file or `LLM`."""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from openinfer.errors import UsageError
from openinfer_engine import EngineOptions

T = TypeVar("T", bound=msgspec.Struct)


def to_struct(options: type[T], values: Mapping[str, Any]) -> T:
    """Returns the struct with the values of its fields; values of other structs are ignored.

    Args:
        options: every field has a default.
        values: by field name, as `Flag.dest`.

    Raises:
        UsageError: naming the option that does not convert or is out of range.
    """
    names = options.__struct_fields__
    try:
        return msgspec.convert({n: values[n] for n in names if n in values}, options)
    except msgspec.ValidationError as error:
        raise UsageError(_describe(error)) from error


def engine_options(values: Mapping[str, Any]) -> EngineOptions:
    """Returns the engine's options.

    Raises:
        UsageError: naming the option that does not convert or is out of range.
        PublisherError: KV events are enabled, and the library that publishes them is not installed.
    """
    options = to_struct(EngineOptions, values)
    if options.kv_events_config is not None:
        options.kv_events_config.check_installed()
    return options


def _describe(error: msgspec.ValidationError) -> str:
    """Returns a message that begins with the field and the flag of the invalid option."""
    reason, _, place = str(error).partition(" - at `$.")
    if not place:  # raised by the struct itself: the message begins with the name of a field
        name, _, rest = reason.partition(" ")
        dest = name.removesuffix(":")
        return f"{dest} ({_flag(dest)}){':' if name != dest else ''} {rest}"
    dest, _, key = place.rstrip("`").partition(".")
    inside = f" at {key}" if key else ""
    return f"{dest} ({_flag(dest)}): {reason}{inside}"


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
