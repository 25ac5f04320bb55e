"""The suite as pytest runs it, and as anything else does."""

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
    """Holds an engine to one rule; nothing may take longer than `patience_s`.

    Raises:
        AssertionError: it breaks it.
    """
    asyncio.run(rule.check(factory, patience_s))


def modelled_options(needs: EngineNeeds) -> ModelledOptions:
    """A modelled executor that satisfies the needs of a rule."""
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
    """An intake that satisfies the needs of a rule."""
    return EngineOptions(
        max_queued_requests=needs.max_queued_requests, max_queued_tokens=needs.max_queued_tokens
    )


class EngineConformance:
    """Subclass it, provide the fixture, and pytest holds your engine to every rule.

        class TestMyEngine(EngineConformance):
            @pytest.fixture
            def engine_factory(self):
                return my_factory

    Attributes:
        has_triggers: whether the engine can be made to fail by a prompt; rules that need it are
            skipped otherwise.
    """

    has_triggers = True

    def run(self, check: Coroutine[Any, Any, None]) -> None:
        """Runs a check to its end; override it to keep one event loop for all rules."""
        asyncio.run(check)

    @pytest.fixture
    def engine_factory(self) -> EngineFactory:
        """Makes the engine under test."""
        raise NotImplementedError("provide the fixture engine_factory")

    @pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
    def test_rule(self, rule: Rule, engine_factory: EngineFactory) -> None:
        """One rule."""
        if rule.has_triggers and not self.has_triggers:
            pytest.skip("this engine cannot be made to fail")
        self.run(rule.check(engine_factory))

    @pytest.mark.slow
    @pytest.mark.parametrize("rule", SLOW_RULES.values(), ids=SLOW_RULES.keys())
    def test_slow_rule(self, rule: Rule, engine_factory: EngineFactory) -> None:
        """One rule that takes its time."""
        self.run(rule.check(engine_factory))
