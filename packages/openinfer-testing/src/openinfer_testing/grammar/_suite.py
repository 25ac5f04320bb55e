"""The suite as pytest runs it."""

import pytest

from openinfer_testing.grammar._rules import GRAMMAR_RULES, BackendFactory, GrammarRule


class GrammarConformance:
    """Subclass it, provide the fixture, and pytest holds your backend to every rule.

    class TestMyBackend(GrammarConformance):
        @pytest.fixture
        def backend_factory(self):
            return MyBackend
    """

    @pytest.fixture
    def backend_factory(self) -> BackendFactory:
        """Makes the backend under test."""
        raise NotImplementedError("provide the fixture backend_factory")

    @pytest.mark.parametrize("rule", GRAMMAR_RULES.values(), ids=GRAMMAR_RULES.keys())
    def test_rule(self, rule: GrammarRule, backend_factory: BackendFactory) -> None:
        """One rule."""
        rule.check(backend_factory)
