"""Lessons in which the needed tool is missing or fails."""

from __future__ import annotations

from random import Random
from typing import Any

from .calculation import ask, phrase_key
from .grammar import draw, load, readings
from .lessons import Draw, Lesson, Split, exchange


class Without(Lesson):
    """Questions of another lesson in a talk without the tool for it."""

    def __init__(self, lesson: Lesson, tool: str) -> None:
        self.name = f"{lesson.name} without {tool}"
        self.shuns = frozenset({tool})
        self._lesson = lesson
        self._answers = _readings(load("python")["refusals"][tool])

    def draw(self, split: Split, rng: Random) -> Draw:
        """Draws the first question of another lesson, and the answer that a tool is needed."""
        drawn = self._lesson.draw(split, rng)
        question = str(drawn.opening[0]["content"])
        return Draw(
            keys=drawn.keys,
            topic=drawn.topic,
            opening=exchange(question, rng.choice(self._answers)),
            accepted=frozenset(self._answers),
            is_exact=drawn.is_exact,
        )


class Ability(Lesson):
    """Questions such as "can you calculate"; the answer depends on the tools of the talk."""

    def __init__(self, tool: str, *, is_given: bool) -> None:
        self.name = f"{'with' if is_given else 'without'} {tool}"
        self.needs = frozenset({tool}) if is_given else frozenset()
        self.shuns = frozenset() if is_given else frozenset({tool})
        content: list[dict[str, Any]] = load("python")["abilities"]
        (self._kind,) = (kind for kind in content if kind["tool"] == tool)
        self._answers = _readings(self._kind["yes" if is_given else "no"])

    def draw(self, split: Split, rng: Random) -> Draw:
        """Draws one question and its answer."""
        reading = ask(self._kind, "", split, rng)
        return Draw(
            keys=(phrase_key(reading),),
            topic=f"ability/{self._kind['tool']}",
            opening=exchange(reading, rng.choice(self._answers)),
            accepted=frozenset(self._answers),
        )


class Failing(Lesson):
    """Questions of another lesson whose tool call fails."""

    def __init__(self, lesson: Lesson) -> None:
        self.name = f"failing {lesson.name}"
        self.needs = lesson.needs
        self._lesson = lesson
        content: dict[str, list[str]] = load("python")["failures"]
        self._responses, self._answers = content["responses"], _readings(content["answers"])

    def draw(self, split: Split, rng: Random) -> Draw:
        """Draws the first question of another lesson, its call, an error as response, no result."""
        drawn = self._lesson.draw(split, rng)
        response = draw(rng.choice(self._responses), rng)
        asked, call = drawn.opening[:2]
        return Draw(
            keys=drawn.keys,
            topic=drawn.topic,
            opening=(
                asked,
                call,
                {"role": "tool", "content": response},
                {"role": "assistant", "content": rng.choice(self._answers)},
            ),
            is_exact=drawn.is_exact,
        )


def _readings(patterns: list[str]) -> list[str]:
    return [text for pattern in patterns for text in readings(pattern)]
