"""Options of model lines, and the errors for unknown flags.

No option is ignored. If an option is neither in `FLAGS` nor one of the model line's, the error
names it and the closest known option.
"""

import argparse
import difflib
from collections.abc import Callable, Collection, Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

from openinfer._engines import ENGINES
from openinfer.errors import UsageError
from openinfer.options._flags import FLAGS, TERMINAL_FLAGS
from openinfer.options._named_options import same_option
from openinfer.options._other_servers import ELSEWHERE
from openinfer_engine import Flag, add_flags, flags_of


def line_flags(options: type[msgspec.Struct], line_name: str) -> tuple[Flag, ...]:
    """Returns the flags of a model line or an engine, one for each field of its options.

    A field that is annotated with `openinfer_engine.Option` has the spellings that the annotation
    lists. Any other field `x_y` is the flag `--x-y`, with `--no-x-y` beside it for a bool.
    """
    own = {flag.dest: flag for flag in flags_of(options, line_name)}
    flags = []
    for field in msgspec.structs.fields(options):
        flag = own.get(field.name)
        name = field.name.replace("_", "-")
        if flag is None and field.type is bool:
            flag = Flag(field.name, (f"--{name}",), "switch", line_name, "", off=(f"--no-{name}",))
        elif flag is None:
            flag = Flag(field.name, (f"--{name}",), "str", line_name, "")
        flags.append(flag)
    return tuple(flags)


def parse_line_options(
    arguments: Sequence[str], options: type[msgspec.Struct], line_name: str
) -> dict[str, Any]:
    """Parses the arguments that `FLAGS` does not know as options of the model's line.

    Raises:
        UsageError: the model line has no such flag. The message names the closest one.
    """
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False, allow_abbrev=False)
    add_flags(parser, line_flags(options, line_name))
    try:
        namespace, unknown = parser.parse_known_args(list(arguments))
    except argparse.ArgumentError as error:
        raise UsageError(f"{error}, an option of {line_name}") from error
    if unknown:
        raise unknown_flag(unknown[0], line_name, options)
    return _convert(vars(namespace), options, line_name, _flag)


def check_line_options(
    values: Mapping[str, Any], options: type[msgspec.Struct], line_name: str, where: str = ""
) -> dict[str, Any]:
    """Converts the values of a line's options: keyword arguments, keys of a config file.

    Args:
        values: values by any spelling, with underscores or dashes. None leaves an option at its
            default.
        options: the options struct of the model line.
        line_name: for messages.
        where: beginning of messages: the configuration file, or empty for keyword arguments.

    Raises:
        UsageError: an option is unknown, given twice or does not convert. The message names it.
    """
    flags = {
        _plain(name.lstrip("-")): (flag, name in flag.off)
        for flag in line_flags(options, line_name)
        for name in flag.spellings
    }
    own: dict[str, Any] = {}
    spelled: dict[str, str] = {}
    for key, value in values.items():
        if _plain(key) not in flags:
            raise _unknown_option(key, line_name, flags, where)
        flag, is_off = flags[_plain(key)]
        if flag.dest in spelled:
            raise same_option(where, spelled[flag.dest], key)
        spelled[flag.dest] = key
        if value is not None:
            own[flag.dest] = not value if is_off and isinstance(value, bool) else value
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
    flags = {flag.dest: flag for flag in flags_of(options, line_name)}
    converted = {}
    for field in msgspec.structs.fields(options):
        if field.name not in values:
            continue
        value = values[field.name]
        try:
            if field.name in flags and isinstance(value, str):
                value = flags[field.name].convert(value)  # converts "32k"
            converted[field.name] = msgspec.convert(value, field.type, strict=False)
        except (msgspec.ValidationError, ValueError) as error:
            choices = ", ".join(_choices(field.type))
            reason = f"takes one of {choices}, not {value!r}" if choices else str(error)
            where = f"{spell(field.name)}, an option of {line_name}"
            raise UsageError(f"{where}: {reason}") from error
    return converted


def _choices(annotation: Any) -> tuple[str, ...]:
    """Returns the choices of a Literal, annotated or optional; empty for other types."""
    if get_origin(annotation) is Literal:
        return tuple(map(str, get_args(annotation)))
    if get_origin(annotation) in (Annotated, UnionType, Union):
        inner = get_args(annotation)
        inner = inner[:1] if get_origin(annotation) is Annotated else inner
        return tuple(choice for each in inner for choice in _choices(each))
    return ()


def _unknown_option(name: str, line_name: str, known: Collection[str], where: str) -> UsageError:
    """Returns the error for an unknown keyword argument or key of a file."""
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
    reason = f"is used by neither OpenInfer nor the model line {line_name}"
    return UsageError(f"{where}{name} {reason}{hint}")


def unknown_flag(flag: str, line_name: str, options: type[msgspec.Struct]) -> UsageError:
    """Returns the error for an unknown flag of a model line."""
    own = [spelling for flag in line_flags(options, line_name) for spelling in flag.spellings]
    name = flag.split("=", 1)[0]
    for engine, loaded in ENGINES.load_all().items():
        if any(name in own_flag.spellings for own_flag in line_flags(loaded.options, engine)):
            return UsageError(f"{name} is an option of --engine {engine}, which is not given")
    reason = f"is used by neither OpenInfer nor the model line {line_name}"
    return _unknown(flag, own, "on this command", reason, "; --help lists the flags")


def unknown_remote_flag(flag: str) -> UsageError:
    """Returns the error for an unknown flag beside --url."""
    advice = "; flags of model lines have no effect with --url"
    return _unknown(flag, (), "with --url", "is not a flag of this command", advice)


def unknown_own_flag(flag: str, own: Sequence[str]) -> UsageError:
    """Returns the error for an unknown flag of a command that takes no flags of model lines.

    Args:
        flag: as it was given.
        own: the command's flags.
    """
    advice = "; --help lists the flags"
    return _unknown(flag, own, "on this command", "is not a flag of this command", advice, near=own)


def _unknown(
    flag: str,
    own: Sequence[str],
    where: str,
    reason: str,
    advice: str,
    near: Sequence[str] | None = None,
) -> UsageError:
    """Returns the error for an unknown flag, with the closest known one if any is close.

    Args:
        flag: as it was given.
        own: the model line's flags.
        where: the place where known flags have no effect.
        reason: the end of the message "FLAG ..." if no command knows the flag.
        advice: the hint to add if no known flag is close.
        near: flags to suggest. None: all known flags.
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
    return UsageError(f"{name} {reason}{hint}")
