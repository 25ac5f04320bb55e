"""Parsers whose calls are held wrongly, one way each, and the rules that catch them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from openinfer_testing.parsers._broken import BrokenParser
from openinfer_testing.parsers._call_rules import CallCase
from openinfer_text import StructureError


class BrokenCalls(BrokenParser):
    """Says what the good one says; subclasses change one thing."""

    def __init__(self, parser: Any) -> None:
        super().__init__(parser)
        self.form = parser
        self.call_triggers: Sequence[str] = parser.call_triggers
        self.call_section: tuple[str, str] = parser.call_section
        self.call_separator: str = parser.call_separator

    def call_tags(self, function: Mapping[str, Any], parameters: Any, /) -> Sequence[Any]:
        """What stands in for the good one's tags."""
        tags: Sequence[Any] = self.form.call_tags(function, parameters)
        return tags


class WritesOtherwise(BrokenCalls):
    """Calls begin with a line break that no model writes."""

    def call_tags(self, function: Mapping[str, Any], parameters: Any, /) -> Sequence[Any]:
        """Changes the beginning."""
        return [
            tag | {"begin": f"{tag['begin']}\n"} for tag in super().call_tags(function, parameters)
        ]


class SaysMore(BrokenCalls):
    """Calls are followed by a word that is no part of them."""

    def call_tags(self, function: Mapping[str, Any], parameters: Any, /) -> Sequence[Any]:
        """Adds it."""
        return [
            tag | {"end": f"{tag['end']} so"} for tag in super().call_tags(function, parameters)
        ]


class IgnoresNames(BrokenCalls):
    """Every function is called by one name."""

    def call_tags(self, function: Mapping[str, Any], parameters: Any, /) -> Sequence[Any]:
        """Changes the name."""
        return super().call_tags({**function, "name": "weather"}, parameters)


class IgnoresSchemas(BrokenCalls):
    """Arguments are never held."""

    def call_tags(self, function: Mapping[str, Any], parameters: Any, /) -> Sequence[Any]:
        """Drops the schema."""
        return super().call_tags(function, None)


class HoldsEverything(BrokenCalls):
    """Arguments are held, whether that was asked for or not."""

    def call_tags(self, function: Mapping[str, Any], parameters: Any, /) -> Sequence[Any]:
        """Never leaves the schema out."""
        return super().call_tags(function, function.get("parameters", parameters))


class RefusesNoName(BrokenCalls):
    """Writes names that cannot be read."""

    def call_tags(self, function: Mapping[str, Any], parameters: Any, /) -> Sequence[Any]:
        """Takes another name where the good one refuses."""
        try:
            return super().call_tags(function, parameters)
        except StructureError:
            return super().call_tags({**function, "name": "other"}, parameters)


BROKEN_CALLS: Mapping[type[BrokenCalls], tuple[str, ...]] = {
    WritesOtherwise: ("what_models_write_is_allowed",),
    SaysMore: ("demanded_calls_are_read_back",),
    IgnoresNames: ("a_named_call_is_of_that_tool",),
    IgnoresSchemas: ("demanded_calls_are_read_back", "strict_calls_are_held_in_free_text"),
    HoldsEverything: ("calls_of_tools_that_are_not_strict_are_free",),
    RefusesNoName: ("names_that_cannot_be_written_are_refused",),
}
"""Every broken form and the rules that catch it."""


def broken_case(broken: type[BrokenCalls], case: CallCase) -> CallCase:
    """The case with a broken form in place of its own."""
    return replace(case, form=broken(case.form))
