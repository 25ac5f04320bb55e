"""Grammar suite for pytest."""

import pytest

from openinfer_testing.grammar._rules import GRAMMAR_RULES, BackendFactory, GrammarRule


class GrammarConformance:
    """Test class with one test for each rule.

    Subclass it and provide the fixture `backend_factory`.

    class TestMyBackend(GrammarConformance):
        @pytest.fixture
        def backend_factory(self):
            return MyBackend
    """

    @pytest.fixture
    def backend_factory(self) -> BackendFactory:
        """Returns the factory of the back end under test."""
        raise NotImplementedError("provide the fixture backend_factory")

    @pytest.mark.parametrize("rule", GRAMMAR_RULES.values(), ids=GRAMMAR_RULES.keys())
    def test_rule(self, rule: GrammarRule, backend_factory: BackendFactory) -> None:
        """Checks one rule."""
        rule.check(backend_factory)
