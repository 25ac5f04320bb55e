"""Questions of the evaluation: families of held-out questions with their lines on the card."""

from __future__ import annotations

from dataclasses import dataclass

from .calculation import PYTHON, Arithmetic, Clock, FollowUp, MoreArithmetic
from .calendar_and_units import Dates, Units
from .copying import Copying
from .json_answers import JsonAnswers, JsonResults
from .lessons import Lesson
from .memory import Memory
from .project import Project
from .refusals import Ability, Without
from .shell import SHELL, Shell
from .stories import Stories
from .talk import Facts, Talk, World

BOTH = frozenset({PYTHON, SHELL})
_SIGNS = {"add": "+", "subtract": "-", "multiply": "x", "divide": "÷"}
_DATES = {
    "between": "days between two dates",
    "after": "a date n days later",
    "before": "a date n days earlier",
    "weekday": "weekday of a date",
}


@dataclass(frozen=True, slots=True)
class Row:
    """A family of questions with its settings.

    Attributes:
        name: of the family.
        lesson: source of the questions.
        line: the line of the card that it counts for; empty if it has its own.
        given: tools in addition to those that the lesson needs.
        max_before: maximum number of draws of other families before the question.
    """

    name: str
    lesson: Lesson
    line: str = ""
    given: frozenset[str] = frozenset()
    max_before: int = 0

    @property
    def needs_call(self) -> bool:
        """Whether a right answer needs a tool."""
        return bool(self.lesson.needs) and not isinstance(self.lesson, Ability)


def rows() -> list[Row]:
    """Returns all families in the order of the card."""
    return [*_talks(), *_sums(), *_days_and_units(), *_files_and_mixes(), *_without_tools()]


def _talks() -> list[Row]:
    talks: list[Lesson] = [
        *map(Talk, ("greetings", "feelings", "self", "limits", "nonsense")),
        *map(Facts, ("concepts", "how-to")),
        *(Project(), World(), Memory(), Stories(), Copying(), JsonAnswers()),
    ]
    given = "self and concepts, tools given"
    return [
        *(Row(lesson.name, lesson) for lesson in talks),
        *(
            Row(f"{lesson.name}, tools given", lesson, given, BOTH)
            for lesson in talks
            if lesson.name in ("self", "concepts")
        ),
    ]


def _sums() -> list[Row]:
    others = ("divide to digits", "divide exactly", "remainder")
    return [
        *(
            Row(f"{sign}, {digits} digits", Arithmetic((kind,), digits))
            for kind, sign in _SIGNS.items()
            for digits in (2, 3, 4)
        ),
        Row("÷ to n digits, exactly, remainder", Arithmetic(others)),
        Row("percents, powers, roots, prices, three terms", MoreArithmetic()),
        Row("follow-ups on a result", FollowUp()),
    ]


def _days_and_units() -> list[Row]:
    pairs = Units().pairs
    return [
        *(Row(name, Dates((kind,))) for kind, name in _DATES.items()),
        Row("date and time of now", Clock()),
        *(Row(pair, Units(i), f"units, {len(pairs)} pairs") for i, pair in enumerate(pairs)),
        Row("a sum, answered in JSON", JsonResults()),
    ]


def _files_and_mixes() -> list[Row]:
    kinds = Shell().kinds
    mixed = "python and shell, after 1 to 4 other questions"
    return [
        *(
            Row(f"shell: {kind}", Shell((kind,)), f"shell, {len(kinds)} kinds of command")
            for kind in kinds
        ),
        *(
            Row(f"{lesson.name}, both tools, talk before", lesson, mixed, BOTH, max_before=4)
            for lesson in (Arithmetic(), Dates(), Units(), Shell())
        ),
    ]


def _without_tools() -> list[Row]:
    cases: list[tuple[Lesson, str, frozenset[str]]] = [
        (Arithmetic(), PYTHON, frozenset()),
        (Dates(), PYTHON, frozenset({SHELL})),
        (Shell(), SHELL, frozenset({PYTHON})),
    ]
    abilities = [
        Ability(tool, is_given=given) for tool in (PYTHON, SHELL) for given in (True, False)
    ]
    return [
        *(
            Row(
                f"{lesson.name} without {tool}",
                Without(lesson, tool),
                "the same without the tool",
                given,
            )
            for lesson, tool, given in cases
        ),
        *(
            Row(ability.name, ability, "can you calculate, can you read files")
            for ability in abilities
        ),
    ]
