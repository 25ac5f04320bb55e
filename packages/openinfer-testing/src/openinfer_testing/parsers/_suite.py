"""Parser suites for pytest."""

from collections.abc import Mapping

import pytest

from openinfer_testing.parsers._call_rules import CALL_RULES, CallCase, CallRule
from openinfer_testing.parsers._golden import GoldenStream, Parsers
from openinfer_testing.parsers._rules import PARSER_RULES, ParserRule


class ParserConformance:
    """Test class with one test for each rule of parsers. Subclass it and provide both fixtures.

    class TestMyParser(ParserConformance):
        @pytest.fixture
        def parsers(self):
            return Parsers(tools=MyParser())

        @pytest.fixture
        def golden_streams(self):
            return {"one call": GoldenStream(text='CALL f {"a": 1}', calls=[("f", '{"a": 1}')])}
    """

    @pytest.fixture
    def parsers(self) -> Parsers:
        """Returns the parsers under test."""
        raise NotImplementedError("provide the fixture parsers")

    @pytest.fixture
    def golden_streams(self) -> Mapping[str, GoldenStream]:
        """Returns outputs of the family's models, by name."""
        raise NotImplementedError("provide the fixture golden_streams")

    @pytest.mark.parametrize("rule", PARSER_RULES.values(), ids=PARSER_RULES.keys())
    def test_rule(
        self, rule: ParserRule, parsers: Parsers, golden_streams: Mapping[str, GoldenStream]
    ) -> None:
        """Checks one rule."""
        rule.check(parsers, golden_streams)


class CallConformance:
    """Test class with one test for each rule of `CallForm`.

    Subclass it and provide the fixture `case`.

    class TestMyCalls(CallConformance):
        @pytest.fixture
        def case(self):
            return CallCase(form=MyParser(), written=['CALL ping {}'])
    """

    @pytest.fixture
    def case(self) -> CallCase:
        """Returns the call form under test, with samples of calls of `CALL_TOOLS`."""
        raise NotImplementedError("provide the fixture case")

    @pytest.mark.parametrize("rule", CALL_RULES.values(), ids=CALL_RULES.keys())
    def test_rule(self, rule: CallRule, case: CallCase) -> None:
        """Checks one rule."""
        rule.check(case)
