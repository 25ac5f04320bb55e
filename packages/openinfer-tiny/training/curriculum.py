"""Which families of talk there are, how often each is drawn, and how draws become a talk."""

from __future__ import annotations

from random import Random

from .grammar import draw
from .lessons import Draw, Lesson, Message, Split, draw_from, split_of
from .memory import Memory
from .stories import Stories
from .talk import Facts, Talk, World

_STORIES = Stories()

CURRICULUM: tuple[tuple[Lesson, float], ...] = (
    (Talk("greetings"), 0.08),
    (Talk("feelings"), 0.10),
    (Talk("self"), 0.11),
    (Talk("limits"), 0.09),
    (Talk("nonsense"), 0.02),
    (Facts("concepts"), 0.23),
    (Facts("how-to"), 0.11),
    (World(), 0.12),
    (Memory(), 0.06),
    (_STORIES, 0.08),
)

_PLAIN_STORY_SHARE = 0.03
_SYSTEM_SHARE = 0.2
_SYSTEM = (
    "You are [a helpful|a friendly|a kind|a polite|a concise|a small|a useful]"
    " [assistant|AI assistant|chatbot|model][.|, and you answer in English."
    "|. Answer in short sentences.|. Be brief.|. Answer the user.| of the OpenInfer project.]"
)
_BEFORE = (
    "[So, |Hey, |Ok, |Hi! |Hello! |Well, |And |Please, |Thanks. |Good. |Oh, |Hi, |Hello, "
    "|Hey Tiny, |I have a question. |I am new here. |I wonder: |One more thing: |Excuse me, ]"
)


def talk(split: Split, rng: Random) -> list[Message]:
    """A talk of one to sixteen draws: messages from the system (sometimes) and two speakers."""
    lessons = [lesson for lesson, _ in CURRICULUM]
    weights = [weight for _, weight in CURRICULUM]
    messages: list[Message] = []
    closings: list[Message] = []
    topics: set[str] = set()
    for _ in range(_num_draws(rng)):
        drawn = draw_from(rng.choices(lessons, weights)[0], split, rng)
        if drawn.topic in topics:
            continue
        topics.add(drawn.topic)
        messages += drawn.opening
        closings += drawn.closing
    if rng.random() < 0.8:
        messages += closings
    return _with_system([_noisy(message, rng) for message in messages], rng)


def question(lesson: Lesson, split: Split, rng: Random) -> tuple[list[Message], Draw]:
    """The messages that ask for the last answer of one draw, and the draw."""
    drawn = draw_from(lesson, split, rng)
    return [_noisy(message, rng) for message in drawn.opening[:-1]], drawn


def plain_story(split: Split, rng: Random) -> str | None:
    """Now and then a story outside any talk, so that bare completion works too; else None."""
    if rng.random() >= _PLAIN_STORY_SHARE:
        return None
    while True:
        key, text = _STORIES.plain(rng)
        if split_of(f"stories:{key}") == split:
            return text


def _num_draws(rng: Random) -> int:
    dice = rng.random()
    if dice < 0.5:
        return 1
    return rng.randint(2, 5) if dice < 0.93 else rng.randint(6, 16)


def _with_system(messages: list[Message], rng: Random) -> list[Message]:
    if rng.random() >= _SYSTEM_SHARE:
        return messages
    return [{"role": "system", "content": draw(_SYSTEM, rng)}, *messages]


def _noisy(message: Message, rng: Random) -> Message:
    """The user's turn as people type: no capitals, no full stop, a slip or a word before."""
    if message["role"] != "user":
        return message
    text = str(message["content"])
    if rng.random() < 0.04:
        text = _slip(text, rng)
    if text.endswith("?") and rng.random() < 0.08:
        text = draw(_BEFORE, rng) + text
    if rng.random() < 0.2:
        text = text.lower()
    if rng.random() < 0.2:
        text = text.rstrip("?.!") or text
    return {**message, "content": text}


def _slip(text: str, rng: Random) -> str:
    """Swaps two letters of one long word; words with capitals (names) stay as they are."""
    words = text.split(" ")
    long = [index for index, word in enumerate(words) if len(word) > 4 and word.islower()]
    if not long:
        return text
    index = rng.choice(long)
    word = words[index]
    at = rng.randrange(1, len(word) - 2)
    words[index] = word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    return " ".join(words)
