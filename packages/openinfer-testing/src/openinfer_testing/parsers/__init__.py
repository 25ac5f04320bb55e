"""The conformance suite of tool and reasoning parsers, and the broken parsers that prove it."""

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
    Answer,
    GoldenStream,
    Parsers,
    answer,
    cuts_of,
    pieces_of,
)
from openinfer_testing.parsers._rules import PARSER_RULES, ParserRule
from openinfer_testing.parsers._suite import CallConformance, ParserConformance

__all__ = [
    # the suite
    "ParserConformance",
    "ParserRule",
    "PARSER_RULES",
    # what it is fed with
    "GoldenStream",
    "Parsers",
    "Answer",
    "answer",
    "pieces_of",
    "cuts_of",
    # its proof
    "BrokenParser",
    "BROKEN_PARSERS",
    # the suite of parsers whose calls can be held
    "CallConformance",
    "CallRule",
    "CALL_RULES",
    "CallCase",
    "CALL_TOOLS",
    "allows",
    # its proof
    "BrokenCalls",
    "BROKEN_CALLS",
    "broken_case",
]
