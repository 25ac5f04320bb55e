"""The installed parsers, and the choice of one for a checkpoint.

Built-in parsers are part of this package. Others are entry points of `openinfer.tool_parsers` and
`openinfer.reasoning_parsers` that name a `ParserFactory`; one with a built-in name replaces that
one.
"""

from collections.abc import Mapping
from typing import Any, Literal

from openinfer_contract import PluginGroup
from openinfer_text.errors import ParserError
from openinfer_text.parsers import _deepseek, _think
from openinfer_text.parsers._hermes import HermesParser
from openinfer_text.parsers._kimi import KimiParser
from openinfer_text.parsers._output_parser import ParserFactory
from openinfer_text.parsers._xml_calls import XmlCallParser

ParserKind = Literal["tool", "reasoning"]
"""Kinds of parsers."""


def _parser(loaded: Any) -> ParserFactory:
    parser: ParserFactory = loaded() if isinstance(loaded, type) else loaded
    if not callable(getattr(parser, "claims", None)):
        raise TypeError("not a parser: it has no method `claims`")
    return parser


PARSERS: Mapping[ParserKind, PluginGroup[ParserFactory]] = {
    "tool": PluginGroup("openinfer.tool_parsers", "tool parser", _parser),
    "reasoning": PluginGroup("openinfer.reasoning_parsers", "reasoning parser", _parser),
}
_FLAGS: dict[ParserKind, str] = {"tool": "--tool-call-parser", "reasoning": "--reasoning-parser"}
_BUILT_IN: dict[ParserKind, tuple[ParserFactory, ...]] = {
    "tool": (HermesParser(), XmlCallParser(), KimiParser(), _deepseek.V3, _deepseek.V31),
    "reasoning": (_think.QWEN3, _think.DEEPSEEK_R1, _think.KIMI_K2),
}


def installed_parsers(kind: ParserKind) -> tuple[str, ...]:
    """Returns the sorted names of the parsers of a kind, without importing them."""
    return tuple(sorted({*_built_in(kind), *PARSERS[kind].names()}))


def check_parser(kind: ParserKind, name: str) -> None:
    """Checks that `name` can be chosen: `auto`, `none` or an installed parser.

    Raises:
        ParserError: it cannot; names the ones that can.
        PluginError: the installed parser of that name does not load.
    """
    if name in PARSERS[kind].names():
        PARSERS[kind].load(name)
    elif name not in ("auto", "none", *_built_in(kind)):
        known = ", ".join(installed_parsers(kind))
        raise ParserError(
            f"{_FLAGS[kind]} {name}: not installed; choose one of auto, none, {known}"
        )


def choose_parser(kind: ParserKind, name: str, template: str | None) -> ParserFactory | None:
    """Returns a parser by name. `auto` is the one that claims the template, `none` is None.

    Raises:
        ParserError: the name is not known, or several parsers claim the template.
        PluginError: the plug-in of that name does not load; `auto` skips such plug-ins.
    """
    check_parser(kind, name)
    if name not in ("auto", "none"):
        try:
            return PARSERS[kind].load(name)
        except KeyError:
            return _built_in(kind)[name]
    if name == "none" or template is None:
        return None
    candidates = {**_built_in(kind), **PARSERS[kind].load_all()}
    claims = [parser for _, parser in sorted(candidates.items()) if parser.claims(template)]
    if len(claims) > 1:
        named = ", ".join(parser.name for parser in claims)
        raise ParserError(
            f"several parsers claim this model: {named}; choose one with {_FLAGS[kind]}"
        )
    return claims[0] if claims else None


def _built_in(kind: ParserKind) -> dict[str, ParserFactory]:
    return {parser.name: parser for parser in _BUILT_IN[kind]}
