"""The gate over prose refuses sentences without a subject and words that name nothing."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def prose():
    spec = importlib.util.spec_from_file_location("prose", ROOT / "tools" / "prose.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def problems(prose, tmp_path, monkeypatch):
    """Function that returns the gate's problems with a repository of one file, by name."""

    def check(name, text):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        monkeypatch.setattr(prose, "ROOT", tmp_path)
        monkeypatch.setattr(prose, "tracked_prose", lambda: prose.passages(path))
        monkeypatch.setattr(prose, "MAX_OPENINGS", 0)
        monkeypatch.setattr(prose, "MAX_VAGUE", 0)
        return prose.check_prose()

    return check


@pytest.mark.parametrize(
    ("name", "text", "word"),
    [
        ("a.py", '"""What it answers."""\n', "What"),
        ("a.py", 'x = 1\n"""Of a head."""\n', "Of"),
        ("a.py", "def f():\n    # Likewise, once more.\n    return 1\n", "Likewise"),
        ("a.py", '"""Returns the request.\n\nIt is told to whoever asks.\n"""\n', "whoever"),
        ("a.py", "x = 1  # the tokens behind the prompt\n", "behind"),
        ("a.c", "/* Nobody reads it. */\n", "Nobody"),
        ("a.md", "So many rows wait.\n", "So many"),
    ],
)
def test_a_bad_passage_is_refused(problems, name, text, word):
    found = problems(name, text)
    assert found
    assert name in found[0]
    assert repr(word) in found[0]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.py", '"""Returns the blocks that a request holds."""\n'),
        ("a.py", "x = [\n    1, 2,\n]  # fmt: skip\ny = f()  # type: ignore[attr-defined]\n"),
        ("a.py", "# The server runs behind a reverse proxy.\n"),
        ("a.py", 'word = "nobody"\n'),
        ("a.md", "What it does: it serves.\n"),
    ],
)
def test_a_good_passage_passes(problems, name, text):
    assert problems(name, text) == []


def test_a_count_below_the_limit_passes(problems, prose, monkeypatch):
    text = '"""What it answers."""\n'
    assert problems("a.py", text)
    monkeypatch.setattr(prose, "MAX_OPENINGS", 1)
    assert prose.check_prose() == []
