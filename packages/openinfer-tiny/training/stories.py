"""Lesson of short stories: a hero with a name, a wish, a trouble, a friend and an end."""

from __future__ import annotations

from random import Random
from typing import Any

from .grammar import article, draw, load
from .lessons import Draw, Lesson, Split, exchange, pick
from .memory import NAMES


class Stories(Lesson):
    """Stories of four to seven sentences, requested in a talk."""

    name = "stories"

    def __init__(self) -> None:
        content = load("stories")
        self._requests: dict[str, Any] = content["requests"]
        self._plots: list[dict[str, Any]] = content["plots"]
        self._lists: dict[str, Any] = content["lists"]

    def draw(self, split: Split, rng: Random) -> Draw:
        """Draws a request and the story. Sometimes the user names the hero or a thing."""
        key, slots, plot = self._fill(split, rng)
        wishes = [
            wish
            for wish in self._requests["wishes"]
            if "thing" not in wish or plot is self._plots[0]
        ]
        request = draw(f"{self._requests['ask']} {self._requests['kind']}", rng)
        request += rng.choice(wishes).format_map(slots) + draw(self._requests["end"], rng)
        return Draw(
            keys=(key,),
            topic=f"story/{key}",
            opening=exchange(request, _tell(plot, slots, rng)),
        )

    def plain(self, split: Split, rng: Random) -> str:
        """Returns a story outside any talk."""
        _, slots, plot = self._fill(split, rng)
        return _tell(plot, slots, rng)

    def _fill(self, split: Split, rng: Random) -> tuple[str, dict[str, str], dict[str, Any]]:
        return pick(split, lambda: self._slots(rng), lambda fill: fill[0])

    def _slots(self, rng: Random) -> tuple[str, dict[str, str], dict[str, Any]]:
        hero, friend = rng.sample(self._lists["heroes"], 2)
        name, friend_name = rng.sample(NAMES, 2)
        thing = rng.choice(list(self._lists["mishaps"]))
        slots = {
            key: rng.choice(values)
            for key, values in self._lists.items()
            if isinstance(values, list)
        }
        slots |= {"hero": hero, "friend": friend, "name": name, "friend_name": friend_name}
        slots |= {"thing": thing, "mishap": self._lists["mishaps"][thing]}
        slots |= {f"a_{key}": article(slots[key]) for key in ("hero", "friend", "thing", "trait")}
        plot = rng.choices(self._plots, (2, 1, 1))[0]
        return f"stories:{hero}/{name}/{thing}/{slots['place']}", slots, plot


def _tell(plot: dict[str, Any], slots: dict[str, str], rng: Random) -> str:
    patterns = [plot["opening"], *plot["sentences"]]
    return " ".join(draw(pattern, rng).format_map(slots) for pattern in patterns)
