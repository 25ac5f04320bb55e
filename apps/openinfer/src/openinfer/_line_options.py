"""What becomes of options: the engine's, the model line's own, and an error for the rest.

An option is consumed or rejected: what is not in the table of flags, and not an option of the
model's own line, is an error that names it and what comes nearest.
"""

import argparse
import difflib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, get_args, get_origin

import msgspec

from openinfer._flags import FLAGS, TERMINAL_FLAGS
from openinfer.errors import UsageError
from openinfer_engine import EngineOptions

_KNOWN_ELSEWHERE = frozenset(
    [
        "--async-scheduling",
        "--chat-template-content-format",
        "--cuda-graph-max-bs",
        "--cuda-graph-max-bs-decode",
        "--cudagraph-capture-sizes",
        "--data-parallel-size",
        "--default-chat-template-kwargs",
        "--disable-log-requests",
        "--disable-log-stats",
        "--dp-size",
        "--enable-auto-tool-choice",
        "--enable-chunked-prefill",
        "--enable-expert-parallel",
        "--enable-force-include-usage",
        "--enable-hierarchical-cache",
        "--enable-log-requests",
        "--enable-lora",
        "--enable-prompt-tokens-details",
        "--ep-size",
        "--kv-cache-dtype",
        "--kv-offload",
        "--kv-offloading-size",
        "--kv-transfer-config",
        "--lora-modules",
        "--lora-paths",
        "--max-cpu-loras",
        "--max-cudagraph-capture-size",
        "--max-lora-rank",
        "--max-long-partial-prefills",
        "--max-loras",
        "--max-loras-per-batch",
        "--override-generation-config",
        "--pipeline-parallel-size",
        "--sampling-defaults",
        "--spec-method",
        "--speculative-algorithm",
        "--speculative-config",
        "--sse-keep-alive-interval",
        "--stream-interval",
        "--swap-space",
        "--tokenizer",
        "--trust-remote-code",
        "--uds",
        "-dp",
        "-pp",
    ]
)
"""Flags of other servers that have no counterpart here yet: rejected by name, not by guess."""


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
    values: Mapping[str, Any], options: type[msgspec.Struct], line_name: str
) -> dict[str, Any]:
    """Converts the values of a line's options: keyword arguments, keys of a config file.

    Raises:
        UsageError: naming the option that is unknown or does not convert.
    """
    known = {field.name for field in msgspec.structs.fields(options)}
    for name in values:
        if name not in known:
            raise _unknown_option(name, line_name, known)
    return _convert(values, options, line_name, str)


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


def _unknown_option(name: str, line_name: str, known: Collection[str]) -> UsageError:
    """The error for a keyword argument or key that nobody consumes."""
    flag = _flag(name)
    if flag in _KNOWN_ELSEWHERE:
        return UsageError(f"{name} is not available in this version of OpenInfer; leave it out")
    near = difflib.get_close_matches(name, [*known, *(flag.dest for flag in FLAGS)], n=1)
    hint = f"; did you mean {near[0]}?" if near else "; docs/guides/serving.md lists the options"
    return UsageError(f"{name} is used by neither OpenInfer nor the model line {line_name}{hint}")


def unknown_flag(flag: str, line_name: str, options: type[msgspec.Struct]) -> UsageError:
    """The error for a flag that nobody consumes."""
    if not flag.startswith("-"):
        return UsageError(f"unexpected argument {flag!r}")
    name = flag.split("=", 1)[0]
    if name in _KNOWN_ELSEWHERE:
        return UsageError(f"{name} is not available in this version of OpenInfer; leave it out")
    spellings = [spelling for entry in FLAGS for spelling in (*entry.names, *entry.off)]
    spellings += [_flag(field.name) for field in msgspec.structs.fields(options)]
    if name in spellings:
        return UsageError(f"{name} has no effect on this command; leave it out")
    near = difflib.get_close_matches(name, [*spellings, *TERMINAL_FLAGS], n=1)
    hint = f"; did you mean {near[0]}?" if near else "; --help lists what there is"
    return UsageError(f"{name} is used by neither OpenInfer nor the model line {line_name}{hint}")


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
        raise UsageError(f"engine option: {error}") from error
    if options.kv_events_config is not None:
        options.kv_events_config.check_installed()
    return options
