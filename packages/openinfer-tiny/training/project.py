"""Questions about OpenInfer whose answers are read from the project's own tables.

`text/terms.md` and `text/packages.md` are the tables of `docs/terms.md` and of the README at the
time when the committed weights were made. Update them only together with the weights.
"""

from __future__ import annotations

import re
from pathlib import Path
from random import Random
from typing import Any

from .calculation import ask, phrase_key
from .grammar import load, readings
from .lessons import Draw, Lesson, Split, exchange

_TEXT = Path(__file__).with_name("text")
_ROW = re.compile(r"^\| (?P<name>[^|]+?) \| (?P<meaning>[^|]+?) \|$", re.MULTILINE)
_LINK = re.compile(r"\[(?P<text>[^]]+)\]\([^)]+\)")
# Rows with these would not make a sentence, or not one that a small model says well.
_UNFIT = re.compile(r"[\[\]{}|*<>]|\bn\b")
_MAX_MEANING = 110


class Project(Lesson):
    """Terms of the project's glossary and packages of the README's table."""

    name = "project"

    def __init__(self) -> None:
        content = load("project")
        self._groups: list[tuple[dict[str, Any], list[dict[str, str]]]] = [
            (content["terms"], _terms()),
            (content["packages"], _packages()),
        ]

    def draw(self, split: Split, rng: Random) -> Draw:
        """Draws a question about one row of a table, with its answer."""
        kind, rows = rng.choices(self._groups, [len(rows) for _, rows in self._groups])[0]
        reading, row = ask(kind, "", split, rng), rng.choice(rows)
        answers = [
            text.format_map(row) for pattern in kind["answers"] for text in readings(pattern)
        ]
        answers = [answer[0].upper() + answer[1:] for answer in answers]
        return Draw(
            keys=(phrase_key(reading),),
            topic=f"project/{row['name']}",
            opening=exchange(reading.format_map(row), rng.choice(answers)),
            accepted=frozenset(answers),
            is_exact=True,
        )


def _terms() -> list[dict[str, str]]:
    rows = []
    for names, meaning in _table(_TEXT / "terms.md"):
        rows += [{"name": name, "term": name, "meaning": meaning} for name in names.split(", ")]
    return rows


def _packages() -> list[dict[str, str]]:
    return [
        {"name": name, "meaning": meaning}
        for name, meaning in _table(_TEXT / "packages.md")
        if name.startswith("openinfer")
    ]


def _table(page: Path) -> list[tuple[str, str]]:
    """Returns name and meaning of the rows of a page's tables that make plain sentences."""
    found = []
    for match in _ROW.finditer(page.read_text(encoding="utf-8")):
        name = _LINK.sub(r"\g<text>", match["name"]).replace("`", "")
        meaning = match["meaning"].replace("`", "")
        is_head = set(name) <= set("-: ") or name in ("term", "package")
        if not is_head and len(meaning) <= _MAX_MEANING and not _UNFIT.search(meaning):
            found.append((name, meaning.rstrip(".")))
    return found
