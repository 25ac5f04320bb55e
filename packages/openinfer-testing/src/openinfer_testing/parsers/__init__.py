"""Conformance suites of parsers, and broken parsers that each of their rules must catch."""

from openinfer_testing.parsers._broken import BROKEN_PARSERS, BrokenParser
from openinfer_testing.parsers._broken_calls import BROKEN_CALLS, BrokenCalls, broken_case
from openinfer_testing.parsers._call_rules import (
    CALL_RULES,
    CALL_TOOLS,
    CallCase,
    CallRule,
    allows,
)
from openinfer_testing.parsers._golden import (
    GoldenStream,
    ParsedOutput,
    Parsers,
    cuts_of,
    parse_output,
    pieces_of,
)
from openinfer_testing.parsers._rules import PARSER_RULES, ParserRule
from openinfer_testing.parsers._suite import CallConformance, ParserConformance

__all__ = [
    # the suite of `ParserFactory`
    "ParserConformance",
    "ParserRule",
    "PARSER_RULES",
    # golden streams
    "GoldenStream",
    "Parsers",
    "ParsedOutput",
    "parse_output",
    "pieces_of",
    "cuts_of",
    # broken parsers
    "BrokenParser",
    "BROKEN_PARSERS",
    # the suite of call forms
    "CallConformance",
    "CallRule",
    "CALL_RULES",
    "CallCase",
    "CALL_TOOLS",
    "allows",
    # broken call forms
    "BrokenCalls",
    "BROKEN_CALLS",
    "broken_case",
]
