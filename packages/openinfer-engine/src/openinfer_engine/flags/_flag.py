"""One flag: its spellings, the kind of its value, and the conversion of what a user wrote."""

from collections.abc import Callable, Mapping
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
"""How a value is written. `count` is a positive integer that may have a suffix (`32k`, `4G`),
`switch` takes no value, `list` is repeatable text, `json` is a JSON object."""

_PARSERS: Mapping[Kind, Callable[[str], Any]] = {
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
    """One option of a command line, of a configuration file and of keyword arguments."""

    dest: str
    """Name of the option: the field of its options struct, and the key of its parsed value."""
    names: tuple[str, ...]
    """Spellings, dashes included. The first one is the name in messages and tables."""
    kind: Kind
    scope: str
    """The options struct or part of the program that the flag belongs to, such as `engine`."""
    help: str
    """One line for `--help` and for the guide's table."""
    off: tuple[str, ...] = ()
    """Spellings that switch a `switch` off."""
    choices: tuple[str, ...] = ()
    """The only values allowed. Empty: any value that converts."""
    default: object = None
    """Value without the flag. None: decided when the program starts."""

    @property
    def spellings(self) -> tuple[str, ...]:
        """All spellings, those that switch the flag off included."""
        return (*self.names, *self.off)

    @property
    def description(self) -> str:
        """The help line. For a list it adds how to pass several values."""
        return f"{self.help}; repeat the flag for more" if self.kind == "list" else self.help

    def parse(self, text: str) -> Any:
        """Returns the value, or one item of a list, that `text` stands for.

        Raises:
            ValueError: `text` is not a value of this kind.
        """
        return _PARSERS[self.kind](text)

    def convert(self, value: object) -> Any:
        """Returns the option's value for one that came from YAML, JSON or Python.

        Text is parsed as on the command line, so `4096`, `"4096"` and `"4k"` are all counts.

        Raises:
            ValueError: the value does not fit. The message begins with "must" or names the value.
        """
        if self.kind == "switch":
            if not isinstance(value, bool):
                raise ValueError("must be true or false")
            return value
        if self.kind == "list":
            return [str(item) for item in value] if isinstance(value, list) else [str(value)]
        if self.kind == "json" and isinstance(value, dict):
            return value
        if isinstance(value, list | dict | bool):
            raise ValueError(f"must be one value, not {value!r}")
        parsed = self.parse(str(value))
        if self.choices and parsed not in self.choices:
            raise ValueError(f"must be one of {', '.join(self.choices)}")
        return parsed
