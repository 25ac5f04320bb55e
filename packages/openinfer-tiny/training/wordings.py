"""Search for held-out questions that are worded like training text.

The split is decided by a question's wording, and noise is added later: "Ok, what time is it?" may
be a reading of its own, or noise in front of another one. Swapped letters are not considered,
because no reading is misspelt.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from random import Random

from .curriculum import BEFORE, CURRICULUM, DROPPED
from .grammar import readings
from .lessons import Draw, Lesson, plain
from .refusals import Failing, Without

_PHRASES = "phrases:"
# Families that hold out the subject of a question, not its wording.
_FREE_WORDS = ("stories:", "copies:")


Wording = tuple[str, bool]
"""A question's words as drawn, with or without filled slots, and `Draw.is_exact`."""


class Wordings:
    """Wordings of training questions, as drawn and with noise."""

    def __init__(self, wordings: Iterable[Wording]) -> None:
        self._plain: set[str] = set()
        self._greetable: set[str] = set()
        self._ungreeted: set[str] = set()
        for question, is_exact in set(wordings):
            forms = _forms(question, is_exact)
            self._plain |= forms
            self._ungreeted |= _without_greeting(forms)
            if question.endswith("?"):
                self._greetable |= forms

    def holds(self, wording: Wording) -> bool:
        """Returns whether the question, with or without noise, can equal one of the wordings."""
        question, is_exact = wording
        forms = _forms(question, is_exact)
        return bool(
            forms & self._plain
            or _without_greeting(forms) & self._greetable
            or (question.endswith("?") and forms & self._ungreeted)
        )


def wordings_of(drawn: Draw) -> list[Wording]:
    """Returns the held-out wordings of a draw: readings with empty slots, or the first question."""
    phrases = [key.removeprefix(_PHRASES) for key in drawn.keys if key.startswith(_PHRASES)]
    if not phrases and not drawn.keys[0].startswith(_FREE_WORDS):
        phrases = [str(drawn.opening[0]["content"])]
    return [(phrase, drawn.is_exact) for phrase in phrases]


def training_wordings(num_draws: int, seed: int) -> Wordings:
    """Returns the wordings of `num_draws` training draws of each family of the curriculum."""
    # These two repeat the questions of other families.
    lessons = [lesson for lesson, _ in CURRICULUM if not isinstance(lesson, (Failing, Without))]
    return Wordings(wording for lesson in lessons for wording in _drawn(lesson, num_draws, seed))


def _drawn(lesson: Lesson, num_draws: int, seed: int) -> set[Wording]:
    rng = Random(f"{seed}/{lesson.name}")
    return {wording for _ in range(num_draws) for wording in wordings_of(lesson.draw("train", rng))}


def _forms(question: str, is_exact: bool) -> set[str]:
    """Returns the question as typed and without one small word, ignoring case and punctuation."""
    # Whether a question for JSON says "key" or "keys" is decided after the split, too.
    question = question.replace("keys {", "key {").replace("fields {", "field {")
    shortened = question if is_exact else DROPPED.sub(" ", question, count=1)
    return {plain(question), plain(shortened)}


def _without_greeting(forms: set[str]) -> set[str]:
    return {
        form[len(greeting) + 1 :]
        for form in forms
        for greeting in _greetings()
        if form.startswith(f"{greeting} ")
    }


@cache
def _greetings() -> tuple[str, ...]:
    return tuple(plain(greeting) for greeting in readings(BEFORE))
