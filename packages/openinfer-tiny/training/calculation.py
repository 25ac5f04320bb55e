"""Lessons for the python tool: arithmetic, the clock, and follow-ups on a result.

The operands and the reading of the question are held out by hash, the operands per operation and
number of digits. The tool's output occurs only in its response and in the answer after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from .grammar import draw, load, readings
from .lessons import Draw, Lesson, Message, Split, holds, pick, tool_exchange

Slots = dict[str, str]

PYTHON = "python"
_ASK_SHARE = 0.5
_SEPARATOR_SHARE = 0.08
_DIGITS = {1: 0.06, 2: 0.27, 3: 0.3, 4: 0.29, 5: 0.05, 6: 0.03}
_DIGITS_OF_ANY = tuple(_DIGITS)
_OPERATION = {"divide to digits": "divide", "divide exactly": "divide", "remainder": "divide"}
_COMMUTATIVE = frozenset({"add", "multiply"})
_KIND_WEIGHTS = {"divide to digits": 0.5, "divide exactly": 0.25, "remainder": 0.3}


def run_code(code: str) -> str:
    """Returns the output of `code`, which must be code of this recipe."""
    lines: list[str] = []
    exec(code, {"print": lambda *values: lines.append(" ".join(map(str, values)))})
    return "\n".join(lines)


def ask(kind: Mapping[str, Any], rule: str, split: Split, rng: Random) -> str:
    """Returns a reading of the kind's question in `split`, with empty slots."""

    def make() -> str:
        if "ask" in kind and rng.random() < _ASK_SHARE:
            return draw(rule.replace("{}", kind["ask"]), rng)
        return draw(rng.choice(kind["questions"]), rng)

    return pick(split, make, phrase_key)


def phrase_key(reading: str) -> str:
    """Returns the key of a question's reading."""
    return f"phrases:{reading}"


def pair_key(kind: str, a: int | str, b: int | str) -> str:
    """Returns the key of two operands of an operation, by the digits of each."""
    operation = _OPERATION.get(kind, kind)
    left, right = str(a), str(b)
    if operation in _COMMUTATIVE:
        left, right = sorted((left, right), key=lambda text: (len(text), text))
    return f"pairs:{operation}/{len(left)}x{len(right)}/{left}_{right}"


def answered(
    kind: Mapping[str, Any], reading: str, shown: Slots, slots: Slots, rng: Random
) -> tuple[tuple[Message, ...], str, frozenset[str]]:
    """Returns the messages, the tool's output, and all accepted answers."""
    code = kind["code"].format_map(slots)
    result = run_code(code)
    accepted = frozenset(
        text.format_map({**slots, "result": result})
        for pattern in kind["answers"]
        for text in readings(pattern)
    )
    question = reading.format_map(shown)
    messages = tool_exchange(question, PYTHON, {"code": code}, result, rng.choice(sorted(accepted)))
    return messages, result, accepted


class Arithmetic(Lesson):
    """Sums of two operands of one to six digits with one of the four operations."""

    name = "arithmetic"
    needs = frozenset({PYTHON})

    def __init__(self, kinds: tuple[str, ...] = (), num_digits: int | None = None) -> None:
        """Limits the lesson to `kinds`, or to operands of at most `num_digits` digits, if given."""
        content = load("python")
        self._rule: str = content["rules"]["ask"]
        self._things: list[str] = content["lists"]["things"]
        self._kinds = [kind for kind in content["arithmetic"] if not kinds or kind["kind"] in kinds]
        self._weights = [_KIND_WEIGHTS.get(kind["kind"], 1.0) for kind in self._kinds]
        self._num_digits = num_digits

    def draw(self, split: Split, rng: Random) -> Draw:
        """Draws one sum: question, call and answer."""
        while True:
            kind = rng.choices(self._kinds, self._weights)[0]
            reading = ask(kind, self._rule, split, rng)
            name = kind["kind"]
            a, b = pick(
                split, lambda name=name: self._pair(name, rng), lambda p, n=name: pair_key(n, *p)
            )
            thing = rng.choice(self._things)
            slots = {"a": str(a), "b": str(b), "n": str(rng.randint(1, 4)), "thing": thing}
            shown = dict(slots)
            if rng.random() < _SEPARATOR_SHARE:
                shown |= {"a": f"{a:,}", "b": f"{b:,}"}
            messages, result, accepted = answered(kind, reading, shown, slots, rng)
            if not holds(str(messages[0]["content"]), result):
                return Draw(
                    keys=(phrase_key(reading), pair_key(name, a, b)),
                    topic=f"{name}/{a}/{b}",
                    opening=messages,
                    accepted=accepted,
                    results=(result,),
                )

    def _pair(self, kind: str, rng: Random) -> tuple[int, int]:
        a, b = number(self._sizes(rng), rng), number(self._sizes(rng), rng)
        if self._num_digits is not None:
            a = number(self._num_digits, rng)
            b = number(rng.randint(2, self._num_digits), rng)
            if rng.random() < 0.5:
                a, b = b, a
        is_division = _OPERATION.get(kind, kind) == "divide"
        if (is_division or kind == "subtract") and a < b and rng.random() < 0.8:
            a, b = b, a
        if is_division and rng.random() < 0.3 and a // b > 0:
            a -= a % b
        return a, b

    def _sizes(self, rng: Random) -> int:
        return rng.choices(_DIGITS_OF_ANY, tuple(_DIGITS.values()))[0]


class MoreArithmetic(Lesson):
    """Sums with three operands, percents, powers, roots and prices."""

    name = "more arithmetic"
    needs = frozenset({PYTHON})

    def __init__(self) -> None:
        content = load("python")
        self._rule: str = content["rules"]["ask"]
        self._kinds: list[dict[str, Any]] = content["more"]

    def draw(self, split: Split, rng: Random) -> Draw:
        """Draws one sum: question, call and answer."""
        while True:
            kind = rng.choice(self._kinds)
            reading = ask(kind, self._rule, split, rng)
            slots, key = pick(split, lambda kind=kind: self._slots(kind, rng), lambda made: made[1])
            messages, result, accepted = answered(kind, reading, slots, slots, rng)
            if not holds(str(messages[0]["content"]), result):
                return Draw(
                    keys=(phrase_key(reading), key),
                    topic=key,
                    opening=messages,
                    accepted=accepted,
                    results=(result,),
                )

    def _slots(self, kind: Mapping[str, Any], rng: Random) -> tuple[Slots, str]:
        a, b, c = (str(number(rng.choice((1, 2, 2, 3, 3, 4)), rng)) for _ in range(3))
        x, y = (f"{rng.randint(1, 999)}.{rng.choice((5, rng.randint(1, 9)))}" for _ in range(2))
        if rng.random() < 0.5:
            x, y = (f"{rng.randint(1, 300)}.{rng.randint(0, 99):02}" for _ in range(2))
        p, q = str(rng.randint(2, 99)), str(rng.randint(2, 6))
        slots = {"a": a, "b": b, "c": c, "p": p, "q": q, "x": x, "y": y}
        used = [text for name, text in slots.items() if f"{{{name}}}" in kind["code"]]
        return slots, f"pairs:{kind['kind']}/{'_'.join(used)}"


class FollowUp(Lesson):
    """A sum, then one to three questions that use the previous result."""

    name = "follow-ups"
    needs = frozenset({PYTHON})

    def __init__(self) -> None:
        content = load("python")
        self._rule: str = content["rules"]["ask"]
        self._kinds: list[dict[str, Any]] = content["follow-ups"]
        self._recalls: list[dict[str, Any]] = content["recalls"]
        self._first = Arithmetic(("add", "subtract", "multiply"))

    def draw(self, split: Split, rng: Random) -> Draw:
        """Draws a sum and its follow-ups. The last question is the one that is rated."""
        while True:
            first = self._first.draw(split, rng)
            keys, messages = list(first.keys), list(first.opening)
            accepted, results = first.accepted, first.results
            for _ in range(rng.choice((1, 1, 1, 2, 2, 3))):
                if "." in results[0] or len(results[0]) > 7:
                    break
                key, more, result, accepted = self._next(split, results[0], rng)
                keys += key
                messages += more
                results = (result,)
            if rng.random() < 0.2:
                key, more, accepted = self._recall(split, results[0], rng)
                keys += key
                messages += more
            if len(messages) > 4 and not _is_leaking(messages):
                return Draw(
                    keys=tuple(keys),
                    topic=f"follow-up/{keys[1]}",
                    opening=tuple(messages),
                    accepted=accepted,
                    results=results,
                )

    def _next(
        self, split: Split, last: str, rng: Random
    ) -> tuple[list[str], tuple[Message, ...], str, frozenset[str]]:
        kind = rng.choice(self._kinds)
        name = kind["kind"].removeprefix("then ")
        reading = ask(kind, self._rule, split, rng)

        def key(b: int) -> str:
            return pair_key(name, last, b)

        b = pick(split, lambda: number(rng.choice((1, 1, 2, 2, 3, 4)), rng), key)
        slots = {"last": last, "b": str(b)}
        messages, result, accepted = answered(kind, reading, slots, slots, rng)
        return [phrase_key(reading), key(b)], messages, result, accepted

    def _recall(
        self, split: Split, last: str, rng: Random
    ) -> tuple[list[str], tuple[Message, ...], frozenset[str]]:
        kind = rng.choice(self._recalls)
        reading = ask(kind, self._rule, split, rng)
        accepted = frozenset(
            text.format(result=last) for pattern in kind["answers"] for text in readings(pattern)
        )
        answer: Message = {"role": "assistant", "content": rng.choice(sorted(accepted))}
        return [phrase_key(reading)], ({"role": "user", "content": reading}, answer), accepted


class Clock(Lesson):
    """The current date and time, which only the tool knows."""

    name = "clock"
    needs = frozenset({PYTHON})

    def __init__(self) -> None:
        self._kinds: list[dict[str, Any]] = load("python")["clock"]

    def draw(self, split: Split, rng: Random) -> Draw:
        """Draws a question for the date or the time, with a random tool response."""
        kind = rng.choice(self._kinds)
        reading = ask(kind, "", split, rng)
        result = f"{rng.randrange(24):02}:{rng.randrange(60):02}"
        if kind["kind"] == "today":
            result = f"20{rng.randint(10, 60)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"
        answers = [
            text.format(result=result) for pattern in kind["answers"] for text in readings(pattern)
        ]
        return Draw(
            keys=(phrase_key(reading),),
            topic=f"clock/{kind['kind']}",
            opening=tool_exchange(
                reading, PYTHON, {"code": kind["code"]}, result, rng.choice(answers)
            ),
        )


def number(num_digits: int, rng: Random) -> int:
    """Returns a positive number of `num_digits` digits."""
    return rng.randint(10 ** (num_digits - 1), 10**num_digits - 1)


def _is_leaking(messages: list[Message]) -> bool:
    """Returns whether an earlier message contains the response of a tool."""
    said = ""
    for message in messages:
        if message["role"] == "tool" and holds(said, str(message["content"])):
            return True
        calls = message.get("tool_calls")
        said += f"\n{message['content']}\n{calls[0]['function']['arguments'] if calls else ''}"
    return False
