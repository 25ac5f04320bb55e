"""docs/architecture.md is the plan as built: it names every module and nothing else."""

import ast
import re
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

import pytest

from openinfer._cli import main

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "architecture.md"
PAGES = [PAGE, *sorted((ROOT / "docs" / "decisions").glob("*.md"))]
SOURCES = {
    path.name.replace("_", "-"): path
    for pattern in ("packages/*/src/openinfer*", "apps/*/src/openinfer*")
    for path in sorted(ROOT.glob(pattern))
}
# `engine._loop:EngineLoop.step` is in openinfer_engine/_loop.py, `app._serve:serve` in openinfer.
REFERENCE = re.compile(r"`([a-z_0-9]+(?:\.[a-z_0-9]+)+):([A-Za-z_][\w.]*)`")


def _modules(distribution):
    """Modules of a package; its own `__init__` is docstring, imports and `__all__` by rule."""
    folder = SOURCES[distribution]
    paths = {path.relative_to(folder).with_suffix("") for path in folder.rglob("*.py")}
    return {path.as_posix() for path in paths} - {"__init__"}


def _named():
    """By package, the modules in the first column of its table, each as often as it is there."""
    named = {}
    for section in re.split(r"^(?=##)", PAGE.read_text(encoding="utf-8"), flags=re.M):
        heading = re.match(r"### (openinfer[a-z0-9-]*)$", section, re.M)
        if heading:
            cells = re.findall(r"^\| (`.*?) \|", section, re.M)
            named[heading[1]] = [name for cell in cells for name in re.findall(r"`(.*?)`", cell)]
    return named


def _members(path):
    """Qualified names of what a module defines, imports nothing."""
    names = set()

    def visit(body, prefix):
        for node in body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                names.add(prefix + node.name)
            if isinstance(node, ast.ClassDef):
                visit(node.body, f"{prefix}{node.name}.")
            targets = getattr(node, "targets", [getattr(node, "target", None)])
            names.update(prefix + t.id for t in targets if isinstance(t, ast.Name))

    visit(ast.parse(path.read_text(encoding="utf-8")).body, "")
    return names


def test_every_package_has_a_table():
    assert sorted(_named()) == sorted(SOURCES)


@pytest.mark.parametrize("distribution", sorted(SOURCES))
def test_the_table_names_every_module_once(distribution):
    named = _named().get(distribution, [])
    assert sorted(named) == sorted(_modules(distribution))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_refers_to_exists(page):
    text = page.read_text(encoding="utf-8")
    for module, name in REFERENCE.findall(text):
        package, *inner = module.split(".")
        distribution = "openinfer" if package == "app" else f"openinfer-{package.replace('_', '-')}"
        path = SOURCES[distribution].joinpath(*inner).with_suffix(".py")
        assert path.is_file(), f"{module}:{name}"
        assert name in _members(path), f"{module}:{name}"
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", text):
        assert (page.parent / target).exists(), target


def test_the_example_of_a_command_runs(monkeypatch, capsys):
    (code,) = re.findall(r"^```python\n(def add\(commands.*?)^```$", PAGE.read_text(), re.M | re.S)
    module = ModuleType("my_command")
    exec(code, module.__dict__)
    monkeypatch.setitem(sys.modules, "my_command", module)
    point = EntryPoint("hello", "my_command:add", "openinfer.commands")
    monkeypatch.setattr("openinfer_contract._plugins.entry_points", lambda group: [point])
    assert main(("hello",)) == main(("hello", "world")) == 0
    assert capsys.readouterr().out == "hello you\nhello world\n"
