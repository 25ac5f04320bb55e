"""Lessons for the shell tool: listing, reading, counting, finding and searching files.

The responses look like the output of the commands; tests run the commands and compare. A draw
contains the files of its folder, so that the evaluation can create it.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from .calculation import ask, phrase_key
from .grammar import load, readings
from .lessons import Draw, Lesson, Split, pick, tool_exchange
from .memory import made_up_word, odd_word

SHELL = "shell"
_MISSING_SHARE = 0.06
# `find` lists in the order of the file system; `ls` sorts.
_LISTED_IN_ANY_ORDER = ("find ending", "find name")
_MADE_UP_SHARE = 0.35
_ROOTS = ("srv", "data", "tmp", "opt", "var", "work", "app", "usr", "mnt", "code", "repo", "w")
_COUNTS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


class Shell(Lesson):
    """Questions about the files of a folder with at most eight files."""

    name = "shell"
    needs = frozenset({SHELL})

    def __init__(self, kinds: tuple[str, ...] = ()) -> None:
        """Limits the lesson to `kinds` of commands, if given."""
        content = load("shell")
        self._kinds = [kind for kind in content["commands"] if not kinds or kind["kind"] in kinds]
        self._answers: dict[str, list[str]] = content["answers"]
        self._lists: dict[str, list[str]] = content["lists"]

    @property
    def kinds(self) -> list[str]:
        """Kinds of questions."""
        return [kind["kind"] for kind in self._kinds]

    def draw(self, split: Split, rng: Random) -> Draw:
        """Draws one question, the command, its response and the answer."""
        kind = rng.choice(self._kinds)
        reading = ask(kind, "", split, rng)
        slots, files = pick(
            split,
            lambda: self._fill(kind["kind"], rng),
            lambda fill: self._key(kind, fill[0]),
        )
        response, said, more = _respond(kind["kind"], slots, files)
        accepted = [
            text.format_map({**slots, **more})
            for pattern in self._answers[said]
            for text in readings(pattern)
        ]
        return Draw(
            keys=(phrase_key(reading), self._key(kind, slots)),
            topic=f"shell/{kind['kind']}",
            opening=tool_exchange(
                reading.format_map(slots),
                SHELL,
                {"command": kind["command"].format_map(slots)},
                response,
                rng.choice(accepted),
            ),
            accepted=frozenset(accepted),
            results=(response,),
            files=files,
            is_exact=True,
            is_listing=kind["kind"] in _LISTED_IN_ANY_ORDER,
        )

    def _key(self, kind: Mapping[str, Any], slots: Mapping[str, str]) -> str:
        names_file = "{file}" in kind["command"] or "{name}" in kind["command"]
        return f"folders:{slots['file'] if names_file else slots['listed']}"

    def _fill(self, kind: str, rng: Random) -> tuple[dict[str, str], dict[str, str]]:
        """Returns the slots of the question and the files of the folder."""
        folder = made_up_word(rng) if rng.random() < 0.25 else rng.choice(self._lists["folders"])
        is_read = kind in ("read", "count lines", "first lines", "search")
        is_searched = kind in ("find ending", "find name")
        is_inside = kind == "list folder" or (is_read and rng.random() < 0.25)
        inside = f"{folder}/" if is_inside else ""
        files: dict[str, str] = {}
        for _ in range(rng.randint(1, 8)):
            where = rng.choice(("", "", f"{folder}/")) if is_searched else inside
            files[where + self._name(rng)] = self._text(rng)
        path = rng.choice(list(files))
        word = rng.choice(files[path].split() or ["fox"]).strip('.,"=:;')
        is_missing = rng.random() < _MISSING_SHARE
        ending = path.rpartition(".")[2]
        if is_missing:
            path, word = inside + self._name(rng), made_up_word(rng)
            ending = rng.choice(self._lists["endings"])
            folder = folder if kind != "list folder" else made_up_word(rng)
        if not word.isalnum():
            word = "the"
        slots = {
            "folder": folder,
            "file": path,
            "name": path.rpartition("/")[2],
            "ending": ending,
            "word": word,
            "n": str(rng.randint(1, 4)),
            "here": self._path(rng),
            "listed": " ".join(sorted(files)),
        }
        return slots, files

    def _path(self, rng: Random) -> str:
        """Returns a folder one to five levels below the root."""
        words = [
            rng.choice((*self._lists["folders"], made_up_word(rng), odd_word(rng), odd_word(rng)))
            if rng.random() < 0.3
            else rng.choice((made_up_word(rng), odd_word(rng), str(rng.randint(0, 9999))))
            for _ in range(rng.randint(0, 4))
        ]
        return "/".join(["", rng.choice(_ROOTS), *words])

    def _name(self, rng: Random) -> str:
        stem = rng.choice(self._lists["stems"])
        if rng.random() < _MADE_UP_SHARE:
            stem = rng.choice((made_up_word, made_up_word, odd_word))(rng)
        if rng.random() < 0.25:
            stem += rng.choice(("_", "-", "")) + str(rng.randint(1, rng.choice((9, 99, 2030))))
        if rng.random() < 0.1:
            stem += f"_{rng.choice(self._lists['stems'])}"
        return f"{stem}.{rng.choice(self._lists['endings'])}"

    def _text(self, rng: Random) -> str:
        """Returns zero to six lines of any kind."""
        if rng.random() < 0.04:
            return ""
        lines = [self._line(rng) for _ in range(rng.choice((1, 1, 2, 2, 3, 4, 5, 6)))]
        return "\n".join(lines) + "\n"

    def _line(self, rng: Random) -> str:
        lists, dice = self._lists, rng.random()
        if dice < 0.5:
            opener, thing = rng.choice(lists["openers"]), rng.choice(lists["things"])
            return f"{opener} {thing}{rng.choice(('', ' ' + rng.choice(lists['times'])))}."
        if dice < 0.65:
            return f"{rng.choice(lists['keys'])} = {rng.randint(0, 10 ** rng.randint(1, 4))}"
        if dice < 0.75:
            return f"{rng.choice(lists['keys'])}: {made_up_word(rng)}"
        if dice < 0.85:
            return f"{made_up_word(rng)},{rng.randint(1, 999)},{rng.randint(1, 99)}"
        if dice < 0.93:
            return f"- {rng.choice(lists['things'])}"
        return f'print("{made_up_word(rng)}")'


def _respond(
    kind: str, slots: Mapping[str, str], files: Mapping[str, str]
) -> tuple[str, str, dict[str, str]]:
    """Returns the command's output, the kind of answer, and further slots of the answer."""
    folder, path = slots["folder"], slots["file"]
    if kind == "where":
        return slots["here"], "where", {"path": slots["here"]}
    if kind in ("list", "count files"):
        shown = sorted({name.partition("/")[0] for name in files})
        if kind == "list":
            return _listing(shown, "none")
        said = "number_one" if len(shown) == 1 else "number"
        return str(len(shown)), said, {"n": str(len(shown))}
    if kind == "list folder":
        shown = sorted(name.partition("/")[2] for name in files if name.startswith(f"{folder}/"))
        if not shown:
            reason = f"ls: cannot access '{folder}': No such file or directory"
            return reason, "missing", {"missing": folder}
        return _listing(shown, "none")
    if kind in ("find ending", "find name"):
        end = f".{slots['ending']}" if kind == "find ending" else f"/{slots['name']}"
        return _listing([f"./{name}" for name in files if f"/{name}".endswith(end)], "found_none")
    if path not in files:
        return _missing(kind, path), "missing", {"missing": path}
    return _respond_of_file(kind, slots, files[path])


def _respond_of_file(
    kind: str, slots: Mapping[str, str], text: str
) -> tuple[str, str, dict[str, str]]:
    path, lines = slots["file"], text.splitlines()
    if kind == "count lines":
        said = "line" if len(lines) == 1 else "lines"
        return f"{len(lines)} {path}", said, {"n": str(len(lines))}
    if kind == "read":
        return text.rstrip("\n"), "text" if text else "empty_file", {"text": "\n".join(lines)}
    if kind == "first lines":
        shown = "\n".join(lines[: int(slots["n"])])
        return shown, "first" if text else "empty_file", {"text": shown}
    found = [f"{number}:{line}" for number, line in enumerate(lines, 1) if slots["word"] in line]
    if not found:
        return "", "no_match", {}
    if len(found) == 1:
        number, _, line = found[0].partition(":")
        return found[0], "match", {"n": number, "text": line}
    return "\n".join(found), "matches", {"count": count(len(found)), "text": "\n".join(found)}


def _missing(kind: str, path: str) -> str:
    """Returns the message of a command about a missing file."""
    before = {
        "read": "cat: ",
        "count lines": "wc: ",
        "first lines": "head: cannot open ",
        "search": "grep: ",
    }[kind]
    if kind == "first lines":
        return f"{before}'{path}' for reading: No such file or directory"
    return f"{before}{path}: No such file or directory"


def _listing(shown: list[str], said_if_none: str) -> tuple[str, str, dict[str, str]]:
    if not shown:
        return "", said_if_none, {}
    said = "one" if len(shown) == 1 else "several"
    return "\n".join(shown), said, {"names": enumeration(shown), "count": count(len(shown))}


def count(number: int) -> str:
    """Returns a small number in words."""
    return _COUNTS[number] if number < len(_COUNTS) else str(number)


def enumeration(names: list[str]) -> str:
    """Returns the names joined: "a", "a and b", "a, b and c"."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
