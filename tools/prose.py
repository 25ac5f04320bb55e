"""The gate over prose: docstrings, comments and Markdown pages.

Two rules, both about sentences that have to be decoded:

- A docstring, or a block of comments, does not begin with a word that leaves the sentence without
  a subject (`OPENINGS`). There is no budget: every hit is a defect.
- Words that stand for a thing instead of naming it (`VAGUE`) are counted over the whole
  repository. The count may only fall: when it does, lower `MAX_VAGUE` to the new count.

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
VAGUE = re.compile(r"\b(nobody|whoever|somebody|so many|so long as|behind)\b", re.IGNORECASE)
MAX_VAGUE = 0
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


def check_prose() -> list[str]:
    """Returns one line for each defect."""
    problems, num_vague = [], 0
    for passage in tracked_prose():
        where = f"{passage.path.relative_to(ROOT)}:{passage.line}"
        opening = OPENINGS.match(passage.text)
        if opening and passage.path.suffix != ".md":
            problems.append(f"{where}: begins with {opening[0]!r}; begin with the subject")
        num_vague += len(VAGUE.findall(passage.text))
    if num_vague > MAX_VAGUE:
        problems.append(
            f"prose: {num_vague} times a word of tools/prose.py:VAGUE, at most {MAX_VAGUE}; "
            "name the thing (`python tools/prose.py` lists them)"
        )
    return problems


def main() -> None:
    """Prints every passage that the gate objects to."""
    for passage in tracked_prose():
        for number, line in enumerate(passage.text.splitlines()):
            is_opening = number == 0 and passage.path.suffix != ".md" and OPENINGS.match(line)
            if is_opening or VAGUE.search(line):
                print(f"{passage.path.relative_to(ROOT)}:{passage.line + number}: {line.strip()}")


if __name__ == "__main__":
    main()
