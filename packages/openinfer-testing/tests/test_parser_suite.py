"""Every rule of the parser suites catches at least one broken parser, and no correct one."""

import json
from dataclasses import replace

import pytest

from openinfer_testing.parsers import (
    BROKEN_CALLS,
    BROKEN_PARSERS,
    CALL_RULES,
    PARSER_RULES,
    BrokenCalls,
    BrokenParser,
    CallCase,
    GoldenStream,
    ParserConformance,
    Parsers,
    broken_case,
)
from openinfer_text import choose_parser

CASES = [(broken, rule) for broken, rules in BROKEN_PARSERS.items() for rule in rules]
ARGUMENTS = json.dumps({"code": "print(1)\n" * 20})
STREAMS = {
    "a call": GoldenStream(
        text=f'So:\n<tool_call>{{"name": "f", "arguments": {ARGUMENTS}}}</tool_call>',
        content="So:",
        calls=[("f", ARGUMENTS)],
        is_streamed=True,
    ),
}


@pytest.mark.parametrize(
    ("broken", "rule"), CASES, ids=[f"{broken.__name__}-{rule}" for broken, rule in CASES]
)
def test_a_broken_parser_is_caught(broken: type[BrokenParser], rule: str) -> None:
    parser = broken(choose_parser("tool", "hermes", None))
    with pytest.raises(AssertionError, match=rule):
        PARSER_RULES[rule].check(Parsers(tools=parser), STREAMS)


def test_every_rule_catches_something() -> None:
    assert {rule for rules in BROKEN_PARSERS.values() for rule in rules} == {*PARSER_RULES}


class TestUnbroken(ParserConformance):
    @pytest.fixture
    def parsers(self) -> Parsers:
        return Parsers(tools=choose_parser("tool", "hermes", None))

    @pytest.fixture
    def golden_streams(self) -> dict[str, GoldenStream]:
        return STREAMS


CASE = CallCase(
    form=choose_parser("tool", "hermes", None),
    written=['<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>'],
)
BROKEN = [(broken, rule) for broken, rules in BROKEN_CALLS.items() for rule in rules]


@pytest.mark.parametrize(
    ("broken", "rule"), BROKEN, ids=[f"{broken.__name__}-{rule}" for broken, rule in BROKEN]
)
def test_a_broken_call_form_is_caught(broken: type[BrokenCalls], rule: str) -> None:
    case = CASE
    if broken.__name__ == "RenamesUnwritableNames":
        case = replace(CASE, form=choose_parser("tool", "kimi_k2", None))
    with pytest.raises(AssertionError, match=rule):
        CALL_RULES[rule].check(broken_case(broken, case))


def test_every_rule_of_calls_catches_something() -> None:
    assert {rule for rules in BROKEN_CALLS.values() for rule in rules} == {*CALL_RULES}
