"""What a family of talk is: a `Lesson` draws exchanges, and names the fills it drew them from.

Every fill (a pattern's reading, a pair of operands, a pair of dates) has a name, and the hash of
that name decides between training and held-out text before a single word is written, so no
held-out fill is ever drawn for training. The noise of `curriculum.py` comes after that: now and
then it turns the wording of a training question into a held-out one, operands aside. `wordings.py`
finds such questions and the evaluation does not ask them. A new family is one more subclass, listed
in `curriculum.py`.
"""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Literal, TypeVar

Split = Literal["train", "held-out"]
Message = dict[str, object]
T = TypeVar("T")

_HELD_OUT_ONE_IN = 16
_MAX_TRIES = 100_000


@dataclass(frozen=True, slots=True)
class Draw:
    """Some messages from fills of one split.

    Attributes:
        keys: the names of the fills, all of the same split.
        topic: a talk holds each topic at most once, so that two draws never contradict.
        opening: messages said together, alternating user and assistant (or tool) turns.
        closing: messages that belong later in the same talk, such as asking a name told before.
        accepted: every answer that would have been right as the last assistant turn.
        results: what a right last answer must hold, where a tool finds it.
        files: text by path, what the folder holds when the shell tool runs.
        is_exact: the user's words are to be copied, so that no slip may change them.
        is_listing: the answer names what the tool found, in whatever order it was found.
    """

    keys: tuple[str, ...]
    topic: str
    opening: tuple[Message, ...]
    closing: tuple[Message, ...] = ()
    accepted: frozenset[str] = frozenset()
    results: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    is_exact: bool = False
    is_listing: bool = False


class Lesson(ABC):
    """A family of talk.

    Attributes:
        name: of the family, the first part of the name of each of its fills.
        needs: the tools without which it is not drawn.
        shuns: the tools with which it is not drawn.
    """

    name: str
    needs: frozenset[str] = frozenset()
    shuns: frozenset[str] = frozenset()

    @abstractmethod
    def draw(self, split: Split, rng: Random) -> Draw:
        """One draw whose fills all belong to `split`."""


def plain(text: str) -> str:
    """The text without what makes no difference to the split: case and punctuation."""
    return re.sub(r"[\s?.!,:]+", " ", text.lower()).strip()


def split_of(key: str) -> Split:
    """The split that the fill named `key` belongs to; case and punctuation make no difference."""
    digest = hashlib.blake2b(plain(key).encode(), digest_size=8).digest()
    return "held-out" if int.from_bytes(digest, "little") % _HELD_OUT_ONE_IN == 0 else "train"


def pick(split: Split, make: Callable[[], T], key: Callable[[T], str]) -> T:
    """Makes fills until one is of `split`.

    Raises:
        ValueError: if there seems to be none; the family has too few fills.
    """
    for _ in range(_MAX_TRIES):
        made = make()
        if split_of(key(made)) == split:
            return made
    raise ValueError(f"no fill like {key(made)!r} is of the split {split!r}: give it more readings")


def exchange(question: str, answer: str) -> tuple[Message, Message]:
    """A user turn and the assistant's."""
    return {"role": "user", "content": question}, {"role": "assistant", "content": answer}


def tool_exchange(
    question: str, name: str, arguments: Mapping[str, str], response: str, answer: str
) -> tuple[Message, ...]:
    """A user turn, the assistant's call, the tool's response and the assistant's answer."""
    call = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
    return (
        {"role": "user", "content": question},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": call}],
        },
        {"role": "tool", "content": response},
        {"role": "assistant", "content": answer},
    )


def holds(text: str, result: str) -> bool:
    """Whether `text` holds `result` as a word or number of its own."""
    before = r"(?<![\w-])(?<!\d\.)" if result[:1] != "-" else r"(?<!\w)"
    return re.search(rf"{before}{re.escape(result)}(?!\w|\.\d)", text) is not None


def prompt_of(opening: tuple[Message, ...]) -> list[Message]:
    """The messages up to the last one of the user: what asks for the last answer."""
    last = max(index for index, message in enumerate(opening) if message["role"] == "user")
    return list(opening[: last + 1])
