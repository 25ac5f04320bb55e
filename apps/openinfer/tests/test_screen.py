import sys

import pytest

from openinfer._screen import Screen


@pytest.fixture
def screen(monkeypatch):
    def make(environment=None, *, is_terminal=True):
        monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal, raising=False)
        return Screen(environment or {})

    return make


def test_texts_go_to_their_streams_on_lines_of_their_own(screen, capsys):
    shown = screen(is_terminal=False)
    shown.reasoning("hm")
    shown.content("Yes")
    shown.content("!")
    shown.call("shell", "ls\npwd")
    shown.content("x\n")
    shown.remark("bye")
    assert capsys.readouterr() == ("Yes!\nx\n", "hm\n[shell]\n  ls\n  pwd\nbye\n")


@pytest.mark.parametrize(
    ("environment", "is_terminal", "has_colours"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"NO_COLOR": "1"}, True, False),
        ({"NO_COLOR": ""}, True, True),
        ({"TERM": "dumb"}, True, False),
    ],
)
def test_colours_are_for_terminals(screen, capsys, environment, is_terminal, has_colours):
    shown = screen(environment, is_terminal=is_terminal)
    shown.reasoning("hm")
    shown.content("plain")
    shown.error("bad")
    out, err = capsys.readouterr()
    assert "\x1b" not in out
    assert ("\x1b[2mhm\x1b[0m" in err) == has_colours == ("\x1b" in err)


def test_long_results_are_cut_on_the_screen(screen, capsys):
    screen(is_terminal=False).result("\n".join(map(str, range(100))))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "  0"
    assert lines[-1] == "  ... and 80 more lines"
    assert len(lines) == 21
