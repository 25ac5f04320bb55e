"""Lessons with answers in JSON: facts of a sentence under given keys, and results of a tool."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from .calculation import Arithmetic, phrase_key
from .grammar import draw, load
from .lessons import Draw, Lesson, Message, Split, exchange, pick, split_of
from .memory import NAMES, made_up_word

_MADE_UP_SHARE = 0.3
_ABSENT_SHARE = 0.08
_NUMBERS = {"age": 99, "count": 500, "guests": 300, "tokens": 9999, "seed": 999}


class JsonAnswers(Lesson):
    """A sentence, the keys to extract from it, and the JSON object."""

    name = "json"

    def __init__(self) -> None:
        content = load("json")
        self._forms: list[str] = content["forms"]["patterns"]
        self._subjects: list[dict[str, Any]] = content["subjects"]
        self._values: dict[str, list[str]] = content["values"]

    def draw(self, split: Split, rng: Random) -> Draw:
        """Draws one sentence with one to four keys; keys that it does not answer are null."""
        subject = rng.choice(self._subjects)
        values = {key: self._value(key, rng) for key in subject["keys"]}
        template = rng.choice(subject["texts"])
        while split_of(f"texts:{template.format_map(values)}") != split:
            values = {key: self._value(key, rng) for key in subject["keys"]}
        text = template.format_map(values)
        told = [key for key in subject["keys"] if f"{{{key}}}" in template]
        absent = [key for key in subject["keys"] if key not in told]
        keys = rng.sample(told, rng.randint(1, len(told)))
        if absent and rng.random() < _ABSENT_SHARE:
            keys.append(rng.choice(absent))
        form = pick(split, lambda: draw(rng.choice(self._forms), rng), phrase_key)
        answer = json.dumps(
            {key: values[key] if key in told else None for key in keys}, ensure_ascii=False
        )
        return Draw(
            keys=(f"texts:{text}", phrase_key(form)),
            topic=f"json/{text}",
            opening=exchange(form.format(keys=key_list(keys, rng), text=text), answer),
            accepted=frozenset({answer}),
            is_exact=True,
        )

    def _value(self, key: str, rng: Random) -> str | int | float:
        if key in _NUMBERS:
            return rng.randint(1, _NUMBERS[key])
        if key in ("price", "seconds"):
            return rng.choice((rng.randint(1, 999), rng.randint(10, 9999) / 10))
        if key == "time":
            return f"{rng.randint(7, 22)}:{rng.choice(('00', '15', '30', '45'))}"
        if key == "model":
            return f"{made_up_word(rng)}-{rng.randint(1, 99)}b"
        if key == "name" and rng.random() >= _MADE_UP_SHARE:
            return rng.choice(NAMES)
        if key in ("name", "shop", "city") and (key == "shop" or rng.random() < _MADE_UP_SHARE):
            return made_up_word(rng).capitalize()
        return rng.choice(self._values[key]) if key != "name" else made_up_word(rng).capitalize()


class JsonResults(Lesson):
    """Sums with a result in JSON."""

    name = "json results"
    needs = frozenset({"python"})

    def __init__(self) -> None:
        results: dict[str, list[str]] = load("json")["results"]
        self._forms, self._keys = results["forms"], results["keys"]
        self._arithmetic = Arithmetic(("add", "subtract", "multiply", "divide"))

    def draw(self, split: Split, rng: Random) -> Draw:
        """Draws the question, the call, and an object with one key."""
        drawn = self._arithmetic.draw(split, rng)
        form = pick(split, lambda: draw(rng.choice(self._forms), rng), phrase_key)
        form_key = phrase_key(form)
        if rng.random() < 0.7:
            form = form.replace("keys {", "key {").replace("fields {", "field {")
        key = rng.choice(self._keys)
        asked = str(drawn.opening[0]["content"])
        question = form.format(keys=key_list([key], rng), question=asked)
        (result,) = drawn.results
        answer = f'{{"{key}": {result}}}'
        messages: tuple[Message, ...] = (
            {"role": "user", "content": question},
            *drawn.opening[1:-1],
            {"role": "assistant", "content": answer},
        )
        return Draw(
            keys=(*drawn.keys, form_key),
            topic=f"{drawn.topic}/json",
            opening=messages,
            accepted=frozenset({answer}),
            results=(result,),
            is_exact=True,
        )


def key_list(keys: list[str], rng: Random) -> str:
    """Returns the keys as people list them: "a, b and c", "a, b, c", or in quotes."""
    if rng.random() < 0.2:
        keys = [f'"{key}"' for key in keys]
    if len(keys) == 1:
        return keys[0]
    joint = rng.choice((" and ", " and ", ", "))
    return joint.join([", ".join(keys[:-1]), keys[-1]])
