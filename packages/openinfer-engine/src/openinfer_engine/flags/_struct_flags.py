"""Flags made from the fields of an options struct."""

import typing
from collections.abc import Mapping
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Literal

import msgspec

from openinfer_engine.flags._flag import Flag, Kind

_KINDS: Mapping[object, Kind] = {bool: "switch", int: "int", float: "float", str: "str"}


@dataclass(frozen=True, slots=True)
class Option:
    """A flag's help and spellings, as a field's annotation: `Annotated[type, Option(...)]`."""

    help: str
    """One line for `--help` and for the guide's table."""
    names: tuple[str, ...] = ()
    """Spellings, dashes included. Empty: `--` and the field's name, with dashes."""
    kind: Kind | None = None
    """How the value is written. None: derived from the field's type."""
    off: tuple[str, ...] = ()
    """Spellings that switch a bool off."""


def flags_of(options: type[msgspec.Struct], scope: str) -> tuple[Flag, ...]:
    """Returns one flag for each field of a struct that is annotated with an `Option`.

    The kind follows from the type: bool is a `switch`, `tuple[str, ...]` a `list`, a struct or a
    dict `json`, and a `Literal` gives the choices. `| None` is ignored.

    Args:
        options: a struct whose annotated fields all have a default.
        scope: `Flag.scope` of all of them.

    Raises:
        TypeError: no kind follows from a field's type, and its `Option` names none.
    """
    hints = typing.get_type_hints(options, include_extras=True)
    flags = []
    for field in msgspec.structs.fields(options):
        annotation = hints[field.name]
        for option in getattr(annotation, "__metadata__", ()):
            if isinstance(option, Option):
                flags.append(_flag(field, annotation.__origin__, option, scope))
    return tuple(flags)


def _flag(field: msgspec.structs.FieldInfo, annotation: object, option: Option, scope: str) -> Flag:
    kind, choices = (option.kind, ()) if option.kind is not None else _kind(annotation)
    if kind is None:
        raise TypeError(f"field {field.name}: name the kind of its flag, {annotation} has none")
    names = option.names or (f"--{field.name.replace('_', '-')}",)
    return Flag(
        field.name,
        names,
        kind,
        scope,
        option.help,
        off=option.off,
        choices=choices,
        default=_default(field),
    )


def _kind(annotation: Any) -> tuple[Kind | None, tuple[str, ...]]:
    """Returns the kind that a type stands for, and the choices of a Literal."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (UnionType, typing.Union):
        (annotation,) = (each for each in arguments if each is not NoneType)
        return _kind(annotation)
    if origin is Literal:
        return "str", arguments
    if origin is tuple and arguments == (str, ...):
        return "list", ()
    if origin is dict or (isinstance(annotation, type) and issubclass(annotation, msgspec.Struct)):
        return "json", ()
    return _KINDS.get(annotation), ()


def _default(field: msgspec.structs.FieldInfo) -> object:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return None if field.default is msgspec.NODEFAULT else field.default
