"""Lesson of repeating words and numbers: copying is the skill that every tool call needs."""

from __future__ import annotations

from random import Random

from .grammar import draw
from .lessons import Draw, Lesson, Split, exchange, pick
from .memory import made_up_word, odd_word

_ASK = (
    "[Repeat|Say|Please say|Please repeat|Can you say|Can you repeat|Write|Please write|Copy"
    "|Now say|Say again|Spell back|Echo|Repeat after me]"
    "[| this| the following| the words| these words| exactly this| after me][:|:|:|,] {}"
)


class Copying(Lesson):
    """Requests to repeat one to eight random words and numbers."""

    name = "copying"

    def draw(self, split: Split, rng: Random) -> Draw:
        """Draws words to repeat, and the answer that repeats them."""
        text = pick(split, lambda: _words(rng), lambda words: f"copies:{words}")
        return Draw(
            keys=(f"copies:{text}",),
            topic=f"copying/{text}",
            opening=exchange(draw(_ASK, rng).format(text), text),
            accepted=frozenset({text}),
            is_exact=True,
        )


def _words(rng: Random) -> str:
    return " ".join(_word(rng) for _ in range(rng.choice((1, 1, 2, 3, 4, 6, 8))))


def _word(rng: Random) -> str:
    dice = rng.random()
    if dice > 0.85:
        return odd_word(rng)
    if dice < 0.45:
        word = made_up_word(rng)
        return word.capitalize() if dice < 0.1 else word
    digits = "".join(rng.choices("0123456789", k=rng.choice((1, 2, 3, 4, 4, 5, 6, 8, 10, 12, 17))))
    if dice < 0.6 and len(digits) > 2:
        at = rng.randrange(1, len(digits))
        return f"{digits[:at]}.{digits[at:]}"
    return digits
