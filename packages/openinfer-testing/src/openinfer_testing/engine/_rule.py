"""A rule: a name, a sentence, a check."""

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
    """Something every engine does.

    Attributes:
        body: tries it in a session; raises AssertionError if the engine does not.
        needs: the engine it wants.
    """

    body: RuleBody
    needs: EngineNeeds

    @property
    def name(self) -> str:
        """The rule in a few words."""
        return self.body.__name__

    @property
    def has_triggers(self) -> bool:
        """Whether the rule needs an engine that fails on demand."""
        return self.needs.has_triggers

    async def check(self, factory: EngineFactory, patience_s: float = PATIENCE_S) -> None:
        """Holds one engine to the rule; nothing may take longer than `patience_s`.

        Raises:
            AssertionError: the engine breaks it.
        """
        try:
            async with session(factory, self.needs, patience_s) as one:
                await self.body(one)
        except EngineDead as error:
            raise AssertionError(f"the engine died: {error}") from error
        except TimeoutError as error:
            raise AssertionError(f"no answer within {patience_s:g} s") from error


def rule(needs: EngineNeeds | None = None) -> Callable[[RuleBody], Rule]:
    """Makes a rule of the decorated function."""
    return lambda body: Rule(body, needs or EngineNeeds())
