"""Families of talk: a `Lesson` draws exchanges and returns the keys of their fills.

Every fill (a pattern's reading, a pair of operands, a pair of dates) has a key. The hash of the
key decides between training and held-out text before any text is made, so a held-out fill is never
drawn for training. The noise of `curriculum.py` is added later. It can turn the wording of a
training question into a held-out one, apart from operands. `wordings.py` finds such questions, and
the evaluation does not ask them. To add a family, add a subclass and list it in `curriculum.py`.
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
    """Messages made from fills of one split.

    Attributes:
        keys: the keys of the fills, all of the same split.
        topic: a talk has each topic at most once, so that two draws never contradict each other.
        opening: consecutive messages, alternating user and assistant (or tool) turns.
        closing: messages for later in the same talk, such as a question for a name told before.
        accepted: all right answers for the last assistant turn.
        results: texts that a right last answer must contain, if a tool returns them.
        files: text by path, the content of the shell tool's folder.
        is_exact: whether the user's words must be copied, so that noise may not misspell them.
        is_listing: whether the answer lists names of the tool's output, in any order.
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
        name: of the family; the first part of the key of each of its fills.
        needs: tools that the talk must define.
        shuns: tools that the talk must not define.
    """

    name: str
    needs: frozenset[str] = frozenset()
    shuns: frozenset[str] = frozenset()

    @abstractmethod
    def draw(self, split: Split, rng: Random) -> Draw:
        """Draws messages whose fills all belong to `split`."""


def plain(text: str) -> str:
    """Returns the text without case and punctuation, which do not affect the split."""
    return re.sub(r"[\s?.!,:]+", " ", text.lower()).strip()


def split_of(key: str) -> Split:
    """Returns the split of the fill with this key, ignoring case and punctuation."""
    digest = hashlib.blake2b(plain(key).encode(), digest_size=8).digest()
    return "held-out" if int.from_bytes(digest, "little") % _HELD_OUT_ONE_IN == 0 else "train"


def pick(split: Split, make: Callable[[], T], key: Callable[[T], str]) -> T:
    """Makes fills until one belongs to `split`.

    Raises:
        ValueError: if none is found, because the family has too few fills.
    """
    for _ in range(_MAX_TRIES):
        made = make()
        if split_of(key(made)) == split:
            return made
    raise ValueError(f"no fill like {key(made)!r} is of the split {split!r}: give it more readings")


def exchange(question: str, answer: str) -> tuple[Message, Message]:
    """Returns a user turn and the assistant's turn."""
    return {"role": "user", "content": question}, {"role": "assistant", "content": answer}


def tool_exchange(
    question: str, name: str, arguments: Mapping[str, str], response: str, answer: str
) -> tuple[Message, ...]:
    """Returns a user turn, the assistant's call, the tool's response and the answer."""
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
    """Returns whether `text` contains `result` as a separate word or number."""
    before = r"(?<![\w-])(?<!\d\.)" if result[:1] != "-" else r"(?<!\w)"
    return re.search(rf"{before}{re.escape(result)}(?!\w|\.\d)", text) is not None


def prompt_of(opening: tuple[Message, ...]) -> list[Message]:
    """Returns the messages up to the user's last one."""
    last = max(index for index, message in enumerate(opening) if message["role"] == "user")
    return list(opening[: last + 1])
