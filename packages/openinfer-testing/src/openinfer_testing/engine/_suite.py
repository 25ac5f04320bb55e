"""Engine suite for pytest, and functions to run its rules without pytest."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from openinfer_engine import EngineOptions
from openinfer_testing._counting import CountingShape
from openinfer_testing._modelled import ModelledOptions
from openinfer_testing.engine._harness import (
    DEAD_TOKEN,
    PATIENCE_S,
    ROW_FAILED_TOKEN,
    STEP_FAILED_TOKEN,
    EngineFactory,
    EngineNeeds,
)
from openinfer_testing.engine._rule import Rule
from openinfer_testing.engine._rules import RULES, SLOW_RULES


def assert_conforms(rule: Rule, factory: EngineFactory, patience_s: float = PATIENCE_S) -> None:
    """Checks one engine against one rule. No wait may take longer than `patience_s`.

    Raises:
        AssertionError: The engine violates the rule.
    """
    asyncio.run(rule.check(factory, patience_s))


def modelled_options(needs: EngineNeeds) -> ModelledOptions:
    """Returns options of a modelled executor that satisfy the needs of a rule."""
    return ModelledOptions(
        shape=CountingShape(
            max_num_seqs=needs.max_num_seqs,
            max_model_len=needs.max_model_len,
            num_blocks=needs.num_blocks,
        ),
        step_s=needs.step_s,
        row_failed_token=ROW_FAILED_TOKEN if needs.has_triggers else None,
        step_failed_token=STEP_FAILED_TOKEN if needs.has_triggers else None,
        dead_token=DEAD_TOKEN if needs.has_triggers else None,
    )


def engine_options(needs: EngineNeeds) -> EngineOptions:
    """Returns engine options whose queue limits satisfy the needs of a rule."""
    return EngineOptions(
        max_queued_requests=needs.max_queued_requests, max_queued_tokens=needs.max_queued_tokens
    )


class EngineConformance:
    """Test class with one test for each rule. Subclass it and provide the fixture `engine_factory`.

        class TestMyEngine(EngineConformance):
            @pytest.fixture
            def engine_factory(self):
                return my_factory

    Attributes:
        has_triggers: Whether chosen prompts can make the engine fail. If False, rules that need
            such failures are skipped.
    """

    has_triggers = True

    def run(self, check: Coroutine[Any, Any, None]) -> None:
        """Runs a check to its end. Override it to use one event loop for all rules."""
        asyncio.run(check)

    @pytest.fixture
    def engine_factory(self) -> EngineFactory:
        """Returns the factory of the engine under test."""
        raise NotImplementedError("provide the fixture engine_factory")

    @pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
    def test_rule(self, rule: Rule, engine_factory: EngineFactory) -> None:
        """Checks one rule."""
        if rule.has_triggers and not self.has_triggers:
            pytest.skip("this engine cannot be made to fail")
        self.run(rule.check(engine_factory))

    @pytest.mark.slow
    @pytest.mark.parametrize("rule", SLOW_RULES.values(), ids=SLOW_RULES.keys())
    def test_slow_rule(self, rule: Rule, engine_factory: EngineFactory) -> None:
        """Checks one rule that takes ten seconds or more."""
        self.run(rule.check(engine_factory))
