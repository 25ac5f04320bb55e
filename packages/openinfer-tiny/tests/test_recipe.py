"""The committed recipe is the one that made the committed weights."""

import ast
import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("jinja2")
pytest.importorskip("tokenizers")


@pytest.fixture(scope="module")
def pins(training):
    from tiny_training import pins

    return pins


@pytest.fixture(scope="module")
def recipe(folder):
    return json.loads((folder / "recipe.json").read_text())


def test_the_text_is_that_of_the_weights(pins, recipe):
    assert pins.text_digest() == recipe["text_digest"]
    assert len(recipe["commit"]) == 40


def test_the_talks_are_those_of_the_weights(pins, recipe):
    assert pins.talks_digest(recipe["seed"]) == recipe["talks_digest"]


def test_a_changed_table_is_seen(pins, recipe, training, tmp_path, monkeypatch):
    folder = Path(training.__path__[0])
    shutil.copytree(folder / "text", tmp_path / "text")
    shutil.copy(folder / "chat_template.jinja", tmp_path)
    monkeypatch.setattr(pins, "_FOLDER", tmp_path)
    assert pins.text_digest() == recipe["text_digest"]
    with (tmp_path / "text" / "terms.md").open("a", encoding="utf-8") as terms:
        terms.write("| new term | which no weights saw |\n")
    assert pins.text_digest() != recipe["text_digest"]


def test_other_talks_have_another_digest(pins, recipe, training, monkeypatch):
    from tiny_training import curriculum

    tables = next(lesson for lesson, _ in curriculum.CURRICULUM if lesson.name == "project")
    groups = [(kind, rows[:-1]) for kind, rows in tables._groups]
    monkeypatch.setattr(tables, "_groups", groups)
    assert pins.talks_digest(recipe["seed"]) != recipe["talks_digest"]


def test_what_built_the_weights_is_written_down(pins):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    assert set(pins.libraries()) >= {"python", "torch", "transformers", "tokenizers"}
    assert len((pins.commit() or "0" * 40).removesuffix("-dirty")) == 40


def test_every_function_of_the_recipe_fits_on_a_page(training):
    long = {
        f"{path.name}: {node.name}"
        for path in Path(training.__path__[0]).glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
        if node.end_lineno - node.lineno >= 40
    }
    assert not long
