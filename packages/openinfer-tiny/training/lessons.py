"""What a family of talk is: a `Lesson` draws exchanges, and names the fill it drew them from.

The name of the fill (`Draw.key`) is hashed to decide between training and held-out text before a
single word is written, so no held-out fill is ever trained on. A new family (tool calls, say) is
one more class with `name` and `draw`, listed in `curriculum.py`.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from random import Random
from typing import Literal, Protocol

Split = Literal["train", "held-out"]
Message = dict[str, object]

_HELD_OUT_ONE_IN = 16


@dataclass(frozen=True, slots=True)
class Draw:
    """Some messages from one fill.

    Attributes:
        key: names the fill; equal keys always land in the same split.
        topic: a talk holds each topic at most once, so that two draws never contradict.
        opening: messages said together, alternating user and assistant (or tool) turns.
        closing: messages that belong later in the same talk, such as asking a name told before.
        accepted: every answer that would have been right as the last assistant turn.
    """

    key: str
    topic: str
    opening: tuple[Message, ...]
    closing: tuple[Message, ...] = ()
    accepted: frozenset[str] = frozenset()


class Lesson(Protocol):
    """A family of talk."""

    name: str

    def draw(self, rng: Random) -> Draw:
        """One draw from the family, of either split."""
        ...


def split_of(key: str) -> Split:
    """The split that the fill named `key` belongs to; case and punctuation make no difference."""
    plain = re.sub(r"[\s?.!,:]+", " ", key.lower()).strip()
    digest = hashlib.blake2b(plain.encode(), digest_size=8).digest()
    return "held-out" if int.from_bytes(digest, "little") % _HELD_OUT_ONE_IN == 0 else "train"


def draw_from(lesson: Lesson, split: Split, rng: Random) -> Draw:
    """Draws until a fill of `split` comes."""
    while True:
        drawn = lesson.draw(rng)
        if split_of(f"{lesson.name}:{drawn.key}") == split:
            return drawn


def exchange(question: str, answer: str) -> tuple[Message, Message]:
    """A user turn and the assistant's."""
    return {"role": "user", "content": question}, {"role": "assistant", "content": answer}
