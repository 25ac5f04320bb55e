"""The pages under docs/ name only existing files and classes, and their example command runs."""

import ast
import re
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

import pytest

from openinfer.commands._cli import main

ROOT = Path(__file__).resolve().parent.parent
ARCHITECTURE = ROOT / "docs" / "architecture.md"
PAGES = sorted((ROOT / "docs").rglob("*.md"))
# `EngineLoop.step`, `StepPlan`: the first part is the name of a class.
CLASS = re.compile(r"`([A-Z][a-z]\w+)(?:\.\w+)?[`(]")


def _classes():
    """Returns the names of classes and module-level variables in the packages' sources."""
    names = set()
    for pattern in ("packages/*/src/**/*.py", "apps/*/src/**/*.py"):
        for path in ROOT.glob(pattern):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef):
                    names.add(node.name)
                targets = getattr(node, "targets", [getattr(node, "target", None)])
                names.update(t.id for t in targets if isinstance(t, ast.Name))
    return names


def test_the_architecture_names_classes_that_exist():
    named = set(CLASS.findall(ARCHITECTURE.read_text(encoding="utf-8")))
    assert len(named) > 20
    assert named <= _classes()


def test_the_architecture_stays_readable_in_one_go():
    assert len(ARCHITECTURE.read_text(encoding="utf-8").splitlines()) <= 300


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT / "docs").as_posix())
def test_links_of_a_page_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def test_the_example_of_a_command_runs(monkeypatch, capsys):
    text = (ROOT / "docs" / "guides" / "extending.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(def add\(commands.*?)^```$", text, re.M | re.S)
    module = ModuleType("my_command")
    exec(code, module.__dict__)
    monkeypatch.setitem(sys.modules, "my_command", module)
    point = EntryPoint("hello", "my_command:add", "openinfer.commands")
    monkeypatch.setattr("openinfer_contract._plugins.entry_points", lambda group: [point])
    assert main(("hello",)) == main(("hello", "world")) == 0
    assert capsys.readouterr().out == "hello you\nhello world\n"
