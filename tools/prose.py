"""The gate over prose: docstrings, comments and Markdown pages.

Two rules, both about sentences that have to be decoded:

- A docstring, or a block of comments, does not begin with a word that leaves the sentence without
  a subject (`OPENINGS`).
- No prose contains words that stand for a thing instead of naming it (`VAGUE`). "Behind" is allowed
  only for a place in a network: behind a proxy, a gateway, a load balancer.

Both are counted over the whole repository. The counts may only fall: when one does, lower
`MAX_OPENINGS` or `MAX_VAGUE` to the new count. At 0, every hit is a defect.

`python tools/prose.py` prints both lists; `tools/check_repo.py` runs the gate.
"""

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
OPENINGS = re.compile(r"(Of|What|Who|Whose|The same|Likewise|Else|That|So many|Nobody|Whoever)\b")
VAGUE = re.compile(
    r"\b(nobody|whoever|somebody|so many|so long as"
    r"|behind(?!\s+(a|an|the|another|its|your)\s+(\w+\s+)?(proxy|gateway|router|balancer)\b))\b",
    re.IGNORECASE,
)
MAX_OPENINGS = 0
MAX_VAGUE = 0
# Directives to tools, which are no prose.
_DIRECTIVE = re.compile(r"(fmt|ruff|isort|mypy|pragma): |(type: ignore|noqa)\b")
# A licence and generated text are not our prose; a changelog and training text are.
_SKIPPED = ("LICENSE", "uv.lock", "packages/openinfer-tiny/training/text/")


class Passage(NamedTuple):
    """A docstring, a block of comments, or a page, with the line on which it begins."""

    path: Path
    line: int
    text: str


def passages(path: Path) -> Iterator[Passage]:
    """Yields the prose of one file; nothing for a file that holds none."""
    if path.suffix == ".md":
        yield Passage(path, 1, path.read_text())
    elif path.suffix == ".py":
        source = path.read_text()
        yield from _docstrings(path, source)
        yield from _comments(path, source)
    elif path.suffix in (".c", ".h"):
        for found in re.finditer(r"/\*(.*?)\*/", source := path.read_text(), re.DOTALL):
            yield Passage(path, source.count("\n", 0, found.start()) + 1, found[1].strip())


def _docstrings(path: Path, source: str) -> Iterator[Passage]:
    """Yields every string that stands alone as a statement: docstrings of attributes too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            text = node.value.value
            if isinstance(text, str):
                yield Passage(path, node.lineno, text.strip())


def _comments(path: Path, source: str) -> Iterator[Passage]:
    """Yields comments; lines that follow one another in one column are one passage."""
    block: list[tokenize.TokenInfo] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        if _DIRECTIVE.match(token.string.lstrip("#").strip()):
            continue
        row, column = token.start
        if block and block[-1].start != (row - 1, column):
            yield _joined(path, block)
            block = []
        block.append(token)
    if block:
        yield _joined(path, block)


def _joined(path: Path, block: list[tokenize.TokenInfo]) -> Passage:
    text = "\n".join(token.string.lstrip("#").strip() for token in block)
    return Passage(path, block[0].start[0], text)


def tracked_prose() -> Iterator[Passage]:
    """Yields the prose of every tracked file."""
    names = subprocess.run(
        ["git", "ls-files", "-z", "*.py", "*.md", "*.c", "*.h"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    for name in filter(None, names.split("\0")):
        path = ROOT / name
        # This file has to name the words that it looks for.
        if path.is_file() and path != Path(__file__) and not name.startswith(_SKIPPED):
            yield from passages(path)


def openings(passage: Passage) -> list[str]:
    """Returns the word of `OPENINGS` with which a passage begins, if it begins with one."""
    found = OPENINGS.match(passage.text) if passage.path.suffix != ".md" else None
    return [found[0]] if found else []


def vague_words(passage: Passage) -> list[str]:
    """Returns the words of `VAGUE` in a passage."""
    return [found[0] for found in VAGUE.finditer(passage.text)]


def check_prose() -> list[str]:
    """Returns one line for each rule whose count is above its limit, and the passages it found."""
    problems = []
    everything = list(tracked_prose())
    for name, limit, find, advice in (
        ("OPENINGS", MAX_OPENINGS, openings, "begin with the subject"),
        ("VAGUE", MAX_VAGUE, vague_words, "name the thing"),
    ):
        hits = [
            f"{passage.path.relative_to(ROOT)}:{passage.line}: {word!r}; {advice}"
            for passage in everything
            for word in find(passage)
        ]
        if len(hits) > limit:
            listed = hits if limit == 0 else []
            problems += [
                *listed,
                f"prose: {len(hits)} hits of tools/prose.py:{name}, at most {limit} are allowed; "
                f"{advice} (`python tools/prose.py` lists them)",
            ]
    return problems


def main() -> None:
    """Prints every line that the gate objects to, and the counts."""
    num_openings = num_vague = 0
    for passage in tracked_prose():
        num_openings += len(openings(passage))
        num_vague += len(vague_words(passage))
        for number, line in enumerate(passage.text.splitlines()):
            if (number == 0 and openings(passage)) or VAGUE.search(line):
                print(f"{passage.path.relative_to(ROOT)}:{passage.line + number}: {line.strip()}")
    print(
        f"{num_openings} openings (at most {MAX_OPENINGS}), {num_vague} vague (at most {MAX_VAGUE})"
    )


if __name__ == "__main__":
    main()
