"""The curriculum: all lessons with their weights, and how draws are combined into a talk."""

from __future__ import annotations

import re
from dataclasses import dataclass
from random import Random

from .calculation import PYTHON, Arithmetic, Clock, FollowUp, MoreArithmetic
from .calendar_and_units import Dates, Units
from .copying import Copying
from .grammar import draw
from .json_answers import JsonAnswers, JsonResults
from .lessons import Draw, Lesson, Message, Split, prompt_of
from .memory import Memory
from .project import Project
from .refusals import Ability, Failing, Without
from .shell import SHELL, Shell
from .stories import Stories
from .talk import Facts, Talk, World
from .tools import Tool, definitions

_STORIES = Stories()

# Relative weights: a talk draws only from the lessons that fit its tools.
CURRICULUM: tuple[tuple[Lesson, float], ...] = (
    (Talk("greetings"), 0.05),
    (Talk("feelings"), 0.07),
    (Talk("self"), 0.09),
    (Talk("limits"), 0.06),
    (Talk("nonsense"), 0.02),
    (Facts("concepts"), 0.15),
    (Facts("how-to"), 0.08),
    (Project(), 0.06),
    (World(), 0.08),
    (Memory(), 0.06),
    (_STORIES, 0.06),
    (Copying(), 0.05),
    (JsonAnswers(), 0.08),
    (Arithmetic(), 0.55),
    (MoreArithmetic(), 0.2),
    (FollowUp(), 0.2),
    (Dates(), 0.35),
    (Units(), 0.3),
    (Clock(), 0.02),
    (JsonResults(), 0.06),
    (Shell(), 0.6),
    (Ability(PYTHON, is_given=True), 0.03),
    (Ability(SHELL, is_given=True), 0.03),
    (Ability(PYTHON, is_given=False), 0.02),
    (Ability(SHELL, is_given=False), 0.02),
    (Without(Arithmetic(), PYTHON), 0.05),
    (Without(Dates(), PYTHON), 0.03),
    (Without(Units(), PYTHON), 0.03),
    (Without(Shell(), SHELL), 0.05),
    (Failing(Arithmetic()), 0.02),
    (Failing(Units()), 0.01),
    (Failing(Dates()), 0.01),
    (Failing(Shell()), 0.03),
)

# Trained tools that a talk defines, with weights. None: no tools at all; empty: only others.
_SETTINGS: tuple[tuple[frozenset[str] | None, float], ...] = (
    (None, 0.4),
    (frozenset({PYTHON}), 0.22),
    (frozenset({SHELL}), 0.1),
    (frozenset({PYTHON, SHELL}), 0.25),
    (frozenset(), 0.03),
)

_PLAIN_STORY_SHARE = 0.02
_SYSTEM_SHARE = 0.2
_SYSTEM = (
    "You are [a helpful|a friendly|a kind|a polite|a concise|a small|a useful]"
    " [assistant|AI assistant|chatbot|model][.|, and you answer in English."
    "|. Answer in short sentences.|. Be brief.|. Answer the user.|. Use the tools that you have."
    "| of the OpenInfer project.]"
)
# Words that noise omits or prepends; `wordings.py` finds the questions that result.
DROPPED = re.compile(r" (the|a|an|is|are|do|does|of|to|me|there) ")
BEFORE = (
    "[So, |Hey, |Ok, |Hi! |Hello! |Well, |And |Please, |Thanks. |Good. |Oh, |Hi, |Hello, "
    "|Hey Tiny, |I have a question. |I am new here. |I wonder: |One more thing: |Excuse me, ]"
)


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages of system (sometimes), user, assistant and tools, with the tools' definitions."""

    messages: list[Message]
    tools: list[Tool]


def talk(split: Split, rng: Random) -> Conversation:
    """Returns a talk of one to sixteen draws that fit its tools."""
    names = rng.choices([s for s, _ in _SETTINGS], [weight for _, weight in _SETTINGS])[0]
    messages: list[Message] = []
    closings: list[Message] = []
    for drawn in _draws(_num_draws(rng), names or frozenset(), split, rng):
        messages += _noisy_all(drawn.opening, drawn, rng)
        closings += _noisy_all(drawn.closing, drawn, rng)
    if rng.random() < 0.8:
        messages += closings
    tools = [] if names is None else definitions(names, rng)
    return Conversation(_with_system(messages, rng), tools)


def question(
    lesson: Lesson,
    split: Split,
    rng: Random,
    *,
    given: frozenset[str] = frozenset(),
    num_before: int = 0,
) -> tuple[Conversation, Draw]:
    """Returns a talk that ends with the last question of one draw, and the draw.

    Args:
        lesson: the family of the question.
        split: the split of all fills.
        rng: source of all other choices.
        given: tools in addition to those that the lesson needs.
        num_before: number of draws of fitting families that come first in the same talk.
    """
    names = lesson.needs | given
    before: list[Message] = []
    for drawn in _draws(num_before, names, split, rng):
        before += _noisy_all(drawn.opening, drawn, rng)
    drawn = lesson.draw(split, rng)
    asked = _noisy_all(tuple(prompt_of(drawn.opening)), drawn, rng)
    return Conversation(before + asked, definitions(names, rng) if names else []), drawn


def plain_story(split: Split, rng: Random) -> str | None:
    """Returns now and then a story outside any talk, for plain completions; otherwise None."""
    return _STORIES.plain(split, rng) if rng.random() < _PLAIN_STORY_SHARE else None


def _draws(number: int, names: frozenset[str], split: Split, rng: Random) -> list[Draw]:
    """Returns at most `number` draws on different topics that fit the tools `names`."""
    fitting = [
        (lesson, weight)
        for lesson, weight in CURRICULUM
        if lesson.needs <= names and not lesson.shuns & names
    ]
    lessons, weights = zip(*fitting, strict=True)
    drawn = [lesson.draw(split, rng) for lesson in rng.choices(lessons, weights, k=number)]
    return list({draw.topic: draw for draw in drawn}.values())


def _num_draws(rng: Random) -> int:
    dice = rng.random()
    if dice < 0.5:
        return 1
    return rng.randint(2, 5) if dice < 0.93 else rng.randint(6, 16)


def _with_system(messages: list[Message], rng: Random) -> list[Message]:
    if rng.random() >= _SYSTEM_SHARE:
        return messages
    return [{"role": "system", "content": draw(_SYSTEM, rng)}, *messages]


def _noisy_all(messages: tuple[Message, ...], drawn: Draw, rng: Random) -> list[Message]:
    """Returns the messages with noise in the user's turns."""
    return [
        {**message, "content": _noisy(str(message["content"]), drawn.is_exact, rng)}
        if message["role"] == "user"
        else message
        for message in messages
    ]


def _noisy(text: str, is_exact: bool, rng: Random) -> str:
    """Adds noise: lower case, no full stop, a slip, a word in front; less if words are copied."""
    if not is_exact and rng.random() < 0.04:
        text = _slip(text, rng)
    if not is_exact and rng.random() < 0.04:
        text = DROPPED.sub(" ", text, count=1)
    if text.endswith("?") and rng.random() < 0.08:
        text = draw(BEFORE, rng) + text
    if not is_exact and rng.random() < 0.2:
        text = text.lower()
    if text[-1] in "?!." and not is_exact and rng.random() < 0.2:
        text = text.rstrip("?.!") or text
    return text


def _slip(text: str, rng: Random) -> str:
    """Swaps two letters of one long word. Words with capitals (names) are not changed."""
    words = text.split(" ")
    long = [
        i for i, word in enumerate(words) if len(word) > 4 and word.islower() and word.isalpha()
    ]
    if not long:
        return text
    index = rng.choice(long)
    word = words[index]
    at = rng.randrange(1, len(word) - 2)
    words[index] = word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    return " ".join(words)
