"""Call forms that constrain calls wrongly, and the rules that must catch them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from openinfer_testing.parsers._broken import BrokenParser
from openinfer_testing.parsers._call_rules import CallCase
from openinfer_text import StructureError


class BrokenCalls(BrokenParser):
    """Wrapper around a correct call form that changes nothing. Each subclass changes one thing."""

    def __init__(self, parser: Any) -> None:
        super().__init__(parser)
        self.form = parser
        self.call_triggers: Sequence[str] = parser.call_triggers
        self.call_section: tuple[str, str] = parser.call_section
        self.call_separator: str = parser.call_separator

    def call_tags(self, function: Mapping[str, Any], parameters: Any, /) -> Sequence[Any]:
        """Returns the tags of one function."""
        tags: Sequence[Any] = self.form.call_tags(function, parameters)
        return tags


class AltersCallSyntax(BrokenCalls):
    """Adds a line break to the beginning of calls, which no model writes."""

    def call_tags(self, function: Mapping[str, Any], parameters: Any, /) -> Sequence[Any]:
        """Changes the beginning of every tag."""
        return [
            tag | {"begin": f"{tag['begin']}\n"} for tag in super().call_tags(function, parameters)
        ]


class AppendsText(BrokenCalls):
    """Appends a word to every call."""

    def call_tags(self, function: Mapping[str, Any], parameters: Any, /) -> Sequence[Any]:
        """Changes the end of every tag."""
        return [
            tag | {"end": f"{tag['end']} so"} for tag in super().call_tags(function, parameters)
        ]


class IgnoresNames(BrokenCalls):
    """Gives every call the same function name."""

    def call_tags(self, function: Mapping[str, Any], parameters: Any, /) -> Sequence[Any]:
        """Replaces the name."""
        return super().call_tags({**function, "name": "weather"}, parameters)


class IgnoresSchemas(BrokenCalls):
    """Does not constrain arguments."""

    def call_tags(self, function: Mapping[str, Any], parameters: Any, /) -> Sequence[Any]:
        """Drops the schema."""
        return super().call_tags(function, None)


class ConstrainsEveryCall(BrokenCalls):
    """Constrains the arguments of tools that are not strict."""

    def call_tags(self, function: Mapping[str, Any], parameters: Any, /) -> Sequence[Any]:
        """Uses the function's own schema if none was requested."""
        return super().call_tags(function, function.get("parameters", parameters))


class RenamesUnwritableNames(BrokenCalls):
    """Replaces a function name that its syntax cannot express, instead of refusing it."""

    def call_tags(self, function: Mapping[str, Any], parameters: Any, /) -> Sequence[Any]:
        """Uses another name if the correct form refuses."""
        try:
            return super().call_tags(function, parameters)
        except StructureError:
            return super().call_tags({**function, "name": "other"}, parameters)


BROKEN_CALLS: Mapping[type[BrokenCalls], tuple[str, ...]] = {
    AltersCallSyntax: ("native_call_syntax_is_allowed",),
    AppendsText: ("required_calls_parse_back",),
    IgnoresNames: ("named_calls_use_that_tool",),
    IgnoresSchemas: ("required_calls_parse_back", "strict_calls_follow_schemas_in_free_text"),
    ConstrainsEveryCall: ("non_strict_calls_are_unconstrained",),
    RenamesUnwritableNames: ("unwritable_names_are_refused",),
}
"""The rules that must catch each broken form."""


def broken_case(broken: type[BrokenCalls], case: CallCase) -> CallCase:
    """Returns the case with a broken form around its own."""
    return replace(case, form=broken(case.form))
