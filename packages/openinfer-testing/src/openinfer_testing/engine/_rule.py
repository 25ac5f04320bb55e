"""Rule of the engine suite: a name, a sentence and a check."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from openinfer_contract import EngineDead
from openinfer_testing.engine._harness import (
    PATIENCE_S,
    EngineFactory,
    EngineNeeds,
    Session,
    session,
)

RuleBody = Callable[[Session], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class Rule:
    """Requirement that every `EngineHandle` must satisfy.

    Attributes:
        body: Checks the requirement in a session; raises AssertionError if the engine violates it.
        needs: Properties of the engine that the check requires.
    """

    body: RuleBody
    needs: EngineNeeds

    @property
    def name(self) -> str:
        """Name of the rule, which is the name of its function."""
        return self.body.__name__

    @property
    def has_triggers(self) -> bool:
        """Whether the rule needs an engine that fails on demand."""
        return self.needs.has_triggers

    async def check(self, factory: EngineFactory, patience_s: float = PATIENCE_S) -> None:
        """Checks one engine. No wait may take longer than `patience_s`.

        Raises:
            AssertionError: The engine violates the rule.
        """
        try:
            async with session(factory, self.needs, patience_s) as opened:
                await self.body(opened)
        except EngineDead as error:
            raise AssertionError(f"the engine died: {error}") from error
        except TimeoutError as error:
            raise AssertionError(f"the engine did not respond within {patience_s:g} s") from error


def rule(needs: EngineNeeds | None = None) -> Callable[[RuleBody], Rule]:
    """Makes a rule of the decorated function."""
    return lambda body: Rule(body, needs or EngineNeeds())
