"""Lesson of facts that the user tells about themselves and asks for later in the same talk."""

from __future__ import annotations

from random import Random
from typing import Any

from .grammar import draw, load, readings, sentence
from .lessons import Draw, Lesson, Split, exchange, pick

NAMES = (
    *("Mia", "Tom", "Anna", "Ben", "Lily", "Max", "Sara", "Leo", "Nina", "Paul", "Ella", "Jack"),
    *("Rosa", "Sam", "Emma", "Noah", "Ida", "Luke", "Clara", "Finn", "Maya", "Oscar", "Ruth"),
    *("Hugo", "Alice", "Peter", "Zoe", "Henry", "Eva", "Simon", "Grace", "Adam", "Julia", "Mark"),
    *("Lena", "David", "Nora", "Felix", "Olga", "Victor", "Amy", "Omar", "Kate", "Ivan", "Rita"),
    *("Carl", "Tess", "Ravi", "Lucy", "Kim", "Ali", "Dora", "George", "Hana", "Eric", "Iris"),
    *("Bob", "Vera", "Otto", "Sofia", "Daniel", "Maria", "John", "Chen", "Yuki", "Wei", "Priya"),
    *("Ahmed", "Laura", "Robert", "Helen", "Martin", "Diana", "Frank", "Gina", "Walter", "Sonia"),
)

_MADE_UP_SHARE = 0.3
_SYLLABLES = ("ba", "do", "fi", "ga", "ka", "lo", "mi", "na", "pe", "ri", "su", "ta", "vo", "xan")
_ENDINGS = ("", "n", "r", "l", "s", "ck", "x", "th")


class Memory(Lesson):
    """A fact told by the user, a few turns, and the question for it."""

    name = "memory"

    def __init__(self) -> None:
        self._memories: list[dict[str, Any]] = load("memory")["memories"]

    def draw(self, split: Split, rng: Random) -> Draw:
        """Draws a fact with its question as `closing`, or the question alone, unanswerable."""
        return pick(split, lambda: self._draw(rng), lambda drawn: drawn.keys[0])

    def _draw(self, rng: Random) -> Draw:
        memory = rng.choice(self._memories)
        asked = draw(rng.choice(memory["asked"]), rng)
        if rng.random() < 0.2:
            return Draw(
                keys=(f"memory:{memory['topic']}/{asked.lower()}",),
                topic=f"memory/{memory['topic']}",
                opening=exchange(asked, memory["unknown"]),
                accepted=frozenset({memory["unknown"]}),
            )
        value = _name(rng) if memory["values"] == "names" else rng.choice(memory["values"])
        told = sentence(draw(rng.choice(memory["told"]), rng)).format(value)
        replies = [sentence(text.format(value)) for text in readings(memory["replies"][0])]
        opening = exchange(told, rng.choice(replies))
        closing = exchange(asked, memory["answer"].format(value))
        if rng.random() < 0.4:
            opening, closing = opening + closing, ()
            replies = [memory["answer"].format(value)]
        return Draw(
            keys=(f"memory:{memory['topic']}/{value}/{told.lower()}",),
            topic=f"memory/{memory['topic']}",
            opening=opening,
            closing=closing,
            accepted=frozenset(replies),
        )


def made_up_word(rng: Random) -> str:
    """Returns a word of two or three syllables that is in no dictionary."""
    syllables = rng.choices(_SYLLABLES, k=rng.choice((2, 2, 3)))
    return "".join(syllables) + rng.choice(_ENDINGS)


def odd_word(rng: Random) -> str:
    """Returns two to twelve letters, digits and underscores, like names of temporary files."""
    letters = "abcdefghijklmnopqrstuvwxyz" * 3 + "ABCDEFGHIJKLMNOPQRSTUVWXYZ" + "0123456789_"
    return "".join(rng.choices(letters, k=rng.randint(2, 12)))


def _name(rng: Random) -> str:
    """Returns a common or a made-up name, so that the model learns to copy names."""
    return rng.choice(NAMES) if rng.random() >= _MADE_UP_SHARE else sentence(made_up_word(rng))
