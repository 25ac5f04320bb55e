"""Which parsers there are, and which one a checkpoint needs.

This package's own are always there. Others are entry points of `openinfer.tool_parsers` and
`openinfer.reasoning_parsers` that name a `ParserFactory`; one with a built-in name replaces it.
"""

from importlib.metadata import entry_points
from typing import Literal, cast

from openinfer_text import _deepseek, _think
from openinfer_text._hermes import HermesParser
from openinfer_text._kimi import KimiParser
from openinfer_text._parser import ParserFactory
from openinfer_text._xml_calls import XmlCallParser
from openinfer_text.errors import ParserError

ParserKind = Literal["tool", "reasoning"]
"""What a parser finds."""

_GROUPS: dict[ParserKind, str] = {
    "tool": "openinfer.tool_parsers",
    "reasoning": "openinfer.reasoning_parsers",
}
_FLAGS: dict[ParserKind, str] = {"tool": "--tool-call-parser", "reasoning": "--reasoning-parser"}
_BUILT_IN: dict[ParserKind, tuple[ParserFactory, ...]] = {
    "tool": (HermesParser(), XmlCallParser(), KimiParser(), _deepseek.V3, _deepseek.V31),
    "reasoning": (_think.QWEN3, _think.DEEPSEEK_R1, _think.KIMI_K2),
}


def installed_parsers(kind: ParserKind) -> tuple[str, ...]:
    """Names of the parsers of a kind, sorted. Imports none of them."""
    names = {parser.name for parser in _BUILT_IN[kind]}
    return tuple(sorted(names | entry_points(group=_GROUPS[kind]).names))


def check_parser(kind: ParserKind, name: str) -> None:
    """Looks whether `name` can be chosen: `auto`, `none` or an installed parser.

    Raises:
        ParserError: it cannot, naming those that can.
    """
    if name not in ("auto", "none", *installed_parsers(kind)):
        known = ", ".join(installed_parsers(kind))
        raise ParserError(f"{_FLAGS[kind]} {name}: not installed; there are auto, none, {known}")


def choose_parser(kind: ParserKind, name: str, template: str | None) -> ParserFactory | None:
    """The parser of that name; `auto` is the one that claims the template, `none` is None.

    Raises:
        ParserError: the name is not known, a plug-in does not import, or several claim it.
    """
    check_parser(kind, name)
    if name == "none":
        return None
    if name != "auto":
        return _load(kind, name)
    if template is None:
        return None
    candidates = [_load(kind, name) for name in installed_parsers(kind)]
    claims = [parser for parser in candidates if parser.claims(template)]
    if len(claims) > 1:
        named = ", ".join(parser.name for parser in claims)
        raise ParserError(f"several parsers claim this model: {named}; choose by {_FLAGS[kind]}")
    return claims[0] if claims else None


def _load(kind: ParserKind, name: str) -> ParserFactory:
    for point in entry_points(group=_GROUPS[kind], name=name):
        try:
            loaded = point.load()
        except (ImportError, AttributeError) as error:
            reason = f"the {kind} parser {name} cannot be loaded: {error}"
            raise ParserError(reason) from error
        return cast(ParserFactory, loaded() if isinstance(loaded, type) else loaded)
    return next(parser for parser in _BUILT_IN[kind] if parser.name == name)
