"""Every rule of the engine suite catches at least one broken engine, and no correct one."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from openinfer_contract import EngineHandle
from openinfer_engine import InProcessEngine
from openinfer_testing import ModelledExecutor
from openinfer_testing.engine import (
    BROKEN_ENGINES,
    RULES,
    SLOW_RULES,
    BrokenEngine,
    EngineFactory,
    EngineNeeds,
    assert_conforms,
    engine_options,
    modelled_options,
)

PATIENCE_S = 1.2
"""Timeout in seconds: short, so that a broken engine is caught quickly."""

CASES = [(broken, rule) for broken, rules in BROKEN_ENGINES.items() for rule in rules]


def broken_factory(broken: Callable[[EngineHandle], EngineHandle]) -> EngineFactory:
    @asynccontextmanager
    async def factory(needs: EngineNeeds) -> AsyncIterator[EngineHandle]:
        engine = InProcessEngine(
            lambda: ModelledExecutor(modelled_options(needs)),
            engine_options(needs),
        )
        try:
            yield broken(engine)
        finally:
            engine.close()

    return factory


@pytest.mark.parametrize(
    ("broken", "rule"), CASES, ids=[f"{broken.__name__}-{rule}" for broken, rule in CASES]
)
def test_broken_engine_is_caught(broken: Callable[[EngineHandle], EngineHandle], rule: str) -> None:
    with pytest.raises(AssertionError):
        assert_conforms({**RULES, **SLOW_RULES}[rule], broken_factory(broken), PATIENCE_S)


def test_every_rule_catches_something() -> None:
    caught = {rule for rules in BROKEN_ENGINES.values() for rule in rules}
    assert caught == {*RULES, *SLOW_RULES}


@pytest.mark.parametrize("rule", RULES)
def test_an_engine_without_a_fault_is_not_caught(rule: str) -> None:
    assert_conforms(RULES[rule], broken_factory(BrokenEngine), PATIENCE_S)
