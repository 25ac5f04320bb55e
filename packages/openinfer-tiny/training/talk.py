"""Lessons with fixed answers: small talk, OpenInfer and its terms, and a small world."""

from __future__ import annotations

from random import Random
from typing import Any

from .grammar import draw, load, readings, sentence
from .lessons import Draw, Lesson, Split, exchange, pick
from .memory import made_up_word

_MORE_SHARE = 0.25


class Talk(Lesson):
    """One group of intents of `talk.toml`: ways to say something, and ways to answer."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._intents: list[dict[str, Any]] = load("talk")[name]
        self._accepted = [_readings(intent["answers"]) for intent in self._intents]

    def draw(self, split: Split, rng: Random) -> Draw:
        """Draws one intent, with question and answer."""
        return pick(split, lambda: self._draw(rng), lambda drawn: drawn.keys[0])

    def _draw(self, rng: Random) -> Draw:
        index = _choose(self._intents, rng)
        intent = self._intents[index]
        question = draw(rng.choice(intent["questions"]), rng).strip()
        while "{made_up}" in question:
            question = question.replace("{made_up}", made_up_word(rng), 1)
        return Draw(
            keys=(f"{self.name}:{intent['topic']}/{question.lower()}",),
            topic=intent["topic"],
            opening=exchange(question, draw(rng.choice(intent["answers"]), rng).strip()),
            accepted=self._accepted[index],
        )


class Facts(Lesson):
    """One group of concepts of `openinfer.toml`, sometimes with a follow-up."""

    def __init__(self, name: str) -> None:
        self.name = name
        content = load("openinfer")
        self._rules: dict[str, str] = content["rules"]
        self._concepts: list[dict[str, Any]] = content[name]
        self._accepted = [_readings(concept["answers"]) for concept in self._concepts]

    def draw(self, split: Split, rng: Random) -> Draw:
        """Draws one concept, with question and answer; one time in four with a follow-up."""
        return pick(split, lambda: self._draw(rng), lambda drawn: drawn.keys[0])

    def _draw(self, rng: Random) -> Draw:
        index = _choose(self._concepts, rng)
        concept = self._concepts[index]
        question = self._question(concept, rng)
        opening = exchange(question, draw(rng.choice(concept["answers"]), rng))
        accepted = self._accepted[index]
        if rng.random() < _MORE_SHARE:
            opening += exchange(draw(self._rules["more"], rng), concept["more"])
            accepted = frozenset({concept["more"]})
        return Draw(
            keys=(f"{self.name}:{index}/{question.lower()}",),
            topic=f"{self.name}/{index}",
            opening=opening,
            accepted=accepted,
        )

    def _question(self, concept: dict[str, Any], rng: Random) -> str:
        others = concept.get("questions")
        if others and ("names" not in concept or rng.random() < 0.3):
            return draw(rng.choice(others), rng)
        thing = draw(concept["names"], rng).strip()
        dice = rng.random()
        if dice < 0.06:
            return sentence(thing) + draw("[?||.]", rng)
        rule = "how" if dice < 0.15 else "use" if dice < 0.4 else "ask"
        return draw(self._rules[rule], rng).format(thing)


class World(Lesson):
    """Facts of the small world of `world.toml`, each with one right answer."""

    name = "world"

    def __init__(self) -> None:
        content = load("world")
        self._polite: str = content["rules"]["polite"]
        self._rows = [(fact, row) for fact in content["facts"] for row in fact["rows"]]

    def draw(self, split: Split, rng: Random) -> Draw:
        """Draws one row of one fact, with question and answer."""
        return pick(split, lambda: self._draw(rng), lambda drawn: drawn.keys[0])

    def _draw(self, rng: Random) -> Draw:
        fact, row = rng.choice(self._rows)
        question = draw(rng.choice(fact["questions"]), rng).format(*row) + "?"
        answer = sentence(fact["answer"].format(*row))
        return Draw(
            keys=(f"world:{fact['topic']}/{row[0]}/{question.lower()}",),
            topic=f"{fact['topic']}/{row[0]}",
            opening=exchange(draw(self._polite, rng) + question, answer),
            accepted=frozenset({answer}),
        )


def _choose(items: list[dict[str, Any]], rng: Random) -> int:
    return rng.choices(range(len(items)), [item.get("weight", 1) for item in items])[0]


def _readings(answers: list[str]) -> frozenset[str]:
    return frozenset(text.strip() for answer in answers for text in readings(answer))
