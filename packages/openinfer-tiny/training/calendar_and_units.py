"""Lessons for the python tool: dates and units."""

from __future__ import annotations

from datetime import date, timedelta
from random import Random
from typing import Any

from .calculation import PYTHON, answered, ask, number, phrase_key
from .grammar import load
from .lessons import Draw, Lesson, Split, holds, pick

_FIRST_YEAR, _LAST_YEAR = 1900, 2099
_NEAR_SHARE = 0.6
_ORDINALS = {1: "st", 2: "nd", 3: "rd", 21: "st", 22: "nd", 23: "rd", 31: "st"}


class Dates(Lesson):
    """Questions about days between dates, a date some days away, and weekdays."""

    name = "dates"
    needs = frozenset({PYTHON})

    def __init__(self, kinds: tuple[str, ...] = ()) -> None:
        """Limits the lesson to `kinds`, if given."""
        content = load("python")
        self._rule: str = content["rules"]["ask"]
        self._kinds = [kind for kind in content["dates"] if not kinds or kind["kind"] in kinds]

    def draw(self, split: Split, rng: Random) -> Draw:
        """Draws one question about dates, with call and answer."""
        while True:
            kind = rng.choice(self._kinds)
            name = kind["kind"]
            reading = ask(kind, self._rule, split, rng)
            fill = pick(split, lambda: _dates(rng), lambda made, name=name: _date_key(name, made))
            one, other, days = fill
            slots = {"n": str(days), "d_code": _code(one), "e_code": _code(other)}
            written = rng.choice(_WAYS)
            other_way = written if rng.random() < 0.8 else rng.choice(_WAYS)
            shown = {**slots, "d": written(one), "e": other_way(other)}
            messages, result, accepted = answered(kind, reading, shown, slots, rng)
            if not holds(str(messages[0]["content"]), result):
                return Draw(
                    keys=(phrase_key(reading), _date_key(name, fill)),
                    topic=_date_key(name, fill),
                    opening=messages,
                    accepted=accepted,
                    results=(result,),
                )


class Units(Lesson):
    """Conversions of a value from one unit to another."""

    name = "units"
    needs = frozenset({PYTHON})

    def __init__(self, pair: int | None = None) -> None:
        """Limits the lesson to the pair of units with the index `pair`, if given."""
        content = load("python")
        self._rule: str = content["rules"]["ask"]
        self._units: dict[str, Any] = content["units"]
        pairs: list[dict[str, Any]] = self._units["pairs"]
        self._pairs = pairs if pair is None else [pairs[pair]]

    @property
    def pairs(self) -> list[str]:
        """Names of the pairs of units."""
        return [" and ".join(names[0] for names in pair["names"]) for pair in self._pairs]

    def draw(self, split: Split, rng: Random) -> Draw:
        """Draws one conversion, with call and answer."""
        while True:
            pair = rng.choice(self._pairs)
            names, formula = pair["names"], pair["there"]
            if rng.random() < 0.5:
                names, formula = names[::-1], pair["back"]
            unit, into = names[0][0], names[1][0]
            reading = ask(self._units, self._rule, split, rng)

            def key(value: str, unit: str = unit, into: str = into) -> str:
                return f"pairs:{unit} to {into}/{len(value)}/{value.replace('.', '_')}"

            value = pick(split, lambda: _value(rng), key)
            slots = {"x": value, "from": unit, "to": into}
            shown = {**slots, "from": rng.choice(names[0]), "to": rng.choice(names[1])}
            kind = {**self._units, "code": f"print(round({formula}, 2))"}
            messages, result, accepted = answered(kind, reading, shown, slots, rng)
            if not holds(str(messages[0]["content"]), result):
                return Draw(
                    keys=(phrase_key(reading), key(value)),
                    topic=key(value),
                    opening=messages,
                    accepted=accepted,
                    results=(result,),
                )


def _dates(rng: Random) -> tuple[date, date, int]:
    """Returns two dates, usually near each other, and a number of days."""
    first = date(_FIRST_YEAR, 1, 1)
    span = (date(_LAST_YEAR, 12, 31) - first).days
    # People mostly ask about dates near the present.
    start = rng.randint(0, span) if rng.random() < 0.4 else rng.randint(36_500, 47_500)
    near = start + rng.choice((-1, 1, 1, 1)) * rng.randint(1, 900)
    end = near if rng.random() < _NEAR_SHARE else rng.randint(0, span)
    days = number(rng.choice((1, 2, 2, 3, 3, 4)), rng)
    return (
        first + timedelta(days=start),
        first + timedelta(days=min(max(end, 0), span)),
        days,
    )


def _date_key(kind: str, fill: tuple[date, date, int]) -> str:
    one, other, days = fill
    if kind == "between":
        return f"pairs:between/{min(one, other)}_{max(one, other)}"
    return f"pairs:{kind}/{one}" if kind == "weekday" else f"pairs:{kind}/{one}_{days}"


def _code(day: date) -> str:
    return f"date({day.year}, {day.month}, {day.day})"


_WAYS = (
    date.isoformat,
    date.isoformat,
    lambda day: f"{day.day} {day:%B} {day.year}",
    lambda day: f"{day:%B} {day.day}, {day.year}",
    lambda day: f"{day:%B} {day.day} {day.year}",
    lambda day: f"{day.day}{_ORDINALS.get(day.day, 'th')} of {day:%B} {day.year}",
    lambda day: f"{day:%B} {day.day}{_ORDINALS.get(day.day, 'th')}, {day.year}",
    lambda day: f"{day.day} {day:%b} {day.year}",
)


def _value(rng: Random) -> str:
    value = str(number(rng.choice((1, 2, 2, 3, 3, 4)), rng))
    return f"{value}.{rng.randint(1, 9)}" if rng.random() < 0.2 else value
