"""What becomes of options: the engine's, the model line's own, and an error for the rest.

An option is consumed or rejected: what is not in the table of flags, and not an option of the
model's own line, is an error that names it and what comes nearest.
"""

import argparse
import difflib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, get_args, get_origin

import msgspec

from openinfer._engines import ENGINES
from openinfer.errors import UsageError
from openinfer.options._flags import FLAGS, TERMINAL_FLAGS
from openinfer.options._named_options import same_option
from openinfer.options._other_servers import ELSEWHERE
from openinfer_engine import EngineOptions


def parse_line_options(
    arguments: Sequence[str], options: type[msgspec.Struct], line_name: str
) -> dict[str, Any]:
    """Parses what the table did not know as options of the model's own line.

    Raises:
        UsageError: for a flag that neither knows, naming it and what comes nearest.
    """
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False, allow_abbrev=False)
    for field in msgspec.structs.fields(options):
        spelled = "--" + field.name.replace("_", "-")
        if field.type is bool:
            parser.add_argument(
                spelled,
                dest=field.name,
                action=argparse.BooleanOptionalAction,
                default=argparse.SUPPRESS,
            )
        else:
            parser.add_argument(spelled, dest=field.name, default=argparse.SUPPRESS)
    try:
        namespace, unknown = parser.parse_known_args(list(arguments))
    except argparse.ArgumentError as error:
        raise UsageError(str(error)) from error
    if unknown:
        raise unknown_flag(unknown[0], line_name, options)
    return _convert(vars(namespace), options, line_name, _flag)


def check_line_options(
    values: Mapping[str, Any], options: type[msgspec.Struct], line_name: str, where: str = ""
) -> dict[str, Any]:
    """Converts the values of a line's options: keyword arguments, keys of a config file.

    Args:
        values: by name, with underscores or dashes; None is as if it were not there.
        options: of the line.
        line_name: for messages.
        where: what messages begin with: the file that the keys are from. Empty for arguments.

    Raises:
        UsageError: naming the option that is unknown, is there twice or does not convert.
    """
    known = {field.name for field in msgspec.structs.fields(options)}
    own: dict[str, Any] = {}
    spelled: dict[str, str] = {}
    for key, value in values.items():
        name = _plain(key)
        if name not in known:
            raise _unknown_option(key, line_name, known, where)
        if name in spelled:
            raise same_option(where, spelled[name], key)
        spelled[name] = key
        if value is not None:
            own[name] = value
    return _convert(own, options, line_name, lambda name: f"{where}{spelled[name]}")


def _plain(name: str) -> str:
    return name.replace("-", "_")


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _convert(
    values: Mapping[str, Any],
    options: type[msgspec.Struct],
    line_name: str,
    spell: Callable[[str], str],
) -> dict[str, Any]:
    converted = {}
    for field in msgspec.structs.fields(options):
        if field.name not in values:
            continue
        value = values[field.name]
        try:
            converted[field.name] = msgspec.convert(value, field.type, strict=False)
        except msgspec.ValidationError as error:
            is_choice = get_origin(field.type) is Literal
            choices = ", ".join(map(str, get_args(field.type))) if is_choice else ""
            reason = f"takes one of {choices}, not {value!r}" if choices else str(error)
            where = f"{spell(field.name)}, an option of {line_name}"
            raise UsageError(f"{where}: {reason}") from error
    return converted


def _unknown_option(name: str, line_name: str, known: Collection[str], where: str) -> UsageError:
    """The error for a keyword argument or a file's key that nobody consumes."""
    flag = _flag(_plain(name))
    if flag in ELSEWHERE:
        return UsageError(f"{where}{name} {ELSEWHERE[flag]}; leave it out")
    names = [*known, *(name.lstrip("-") for flag in FLAGS for name in flag.spellings)]
    separator = "-" if where else "_"
    near = difflib.get_close_matches(_plain(name), map(_plain, names), n=1)
    hint = (
        f"; did you mean {near[0].replace('_', separator)}?"
        if near
        else "; docs/guides/flags.md lists the options"
    )
    nobody = f"is used by neither OpenInfer nor the model line {line_name}"
    return UsageError(f"{where}{name} {nobody}{hint}")


def unknown_flag(flag: str, line_name: str, options: type[msgspec.Struct]) -> UsageError:
    """The error for a flag that nobody consumes."""
    own = [_flag(field.name) for field in msgspec.structs.fields(options)]
    name = flag.split("=", 1)[0]
    for engine, loaded in ENGINES.load_all().items():
        if name in [_flag(field.name) for field in msgspec.structs.fields(loaded.options)]:
            return UsageError(f"{name} is an option of --engine {engine}, which is not given")
    nobody = f"is used by neither OpenInfer nor the model line {line_name}"
    return _unknown(flag, own, "on this command", nobody, "; --help lists what there is")


def unknown_remote_flag(flag: str) -> UsageError:
    """The error for a flag that nobody consumes where the model is a server's."""
    advice = ", and a model line's own have no effect with --url"
    return _unknown(flag, (), "with --url", "is no flag of this command", advice)


def unknown_own_flag(flag: str, own: Sequence[str]) -> UsageError:
    """The error for a flag that a command does not have, of those that take no model line's.

    Args:
        flag: as it was given.
        own: the command's flags.
    """
    advice = "; --help lists what there is"
    return _unknown(flag, own, "on this command", "is no flag of this command", advice, near=own)


def _unknown(
    flag: str,
    own: Sequence[str],
    where: str,
    nobody: str,
    advice: str,
    near: Sequence[str] | None = None,
) -> UsageError:
    """The error for a flag that nobody consumes, with the nearest one if any is near.

    Args:
        flag: as it was given.
        own: the model line's flags.
        where: flags that are known have no effect.
        nobody: what is said of a flag that is known nowhere.
        advice: said behind that if none is near.
        near: flags that may be meant; None: all that are known.
    """
    if not flag.startswith("-"):
        return UsageError(f"unexpected argument {flag!r}; repeat a flag for more values")
    name = flag.split("=", 1)[0]
    if name in ELSEWHERE:
        return UsageError(f"{name} {ELSEWHERE[name]}; leave it out")
    spellings = [*(spelling for entry in FLAGS for spelling in entry.spellings), *own]
    if name in spellings:
        return UsageError(f"{name} has no effect {where}; leave it out")
    meant = (*spellings, *TERMINAL_FLAGS) if near is None else near
    words = {spelling.lstrip("-"): spelling for spelling in meant}
    found = difflib.get_close_matches(name.lstrip("-"), words, n=1)
    hint = f"; did you mean {words[found[0]]}?" if found else advice
    return UsageError(f"{name} {nobody}{hint}")


def _describe(error: msgspec.ValidationError) -> str:
    """Which option does not convert, by both of its names, and why."""
    reason, _, place = str(error).partition(" - at `$.")
    if not place:  # said of the options together: it begins with the name of one
        name, _, rest = reason.partition(" ")
        dest = name.removesuffix(":")
        return f"{dest} ({_flag(dest)}){':' if name != dest else ''} {rest}"
    dest, _, key = place.rstrip("`").partition(".")
    inside = f" at {key}" if key else ""
    return f"{dest} ({_flag(dest)}): {reason}{inside}"


def engine_options(values: Mapping[str, Any]) -> EngineOptions:
    """The engine's options out of parsed flags or keyword arguments.

    Raises:
        UsageError: naming the option that does not convert.
        PublisherError: KV events are asked for, and what publishes them is not installed.
    """
    known = {field.name for field in msgspec.structs.fields(EngineOptions)}
    try:
        options = msgspec.convert({k: v for k, v in values.items() if k in known}, EngineOptions)
    except msgspec.ValidationError as error:
        raise UsageError(_describe(error)) from error
    if options.kv_events_config is not None:
        options.kv_events_config.check_installed()
    return options
