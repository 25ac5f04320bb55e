import argparse
import builtins
import io
import sys

import pytest

import openinfer.terminal._complete as complete_module
from openinfer import UsageError
from openinfer.terminal._complete import complete


class _Model:
    name = "fake"

    def __init__(self, *pieces):
        self.pieces = pieces
        self.asked = []
        self.is_closed = self.has_ended = False

    def stream_completion(self, prompt, options):
        self.asked.append((prompt, dict(options)))
        try:
            for piece in self.pieces:
                if isinstance(piece, BaseException):
                    raise piece
                yield piece
        finally:
            self.has_ended = True

    def close(self):
        self.is_closed = True


@pytest.fixture
def run(monkeypatch):
    def run(model, prompt=None, extra=(), **options):
        monkeypatch.setattr(complete_module, "open_model", lambda *_: model)
        fields = {"max_tokens": None, "temperature": None, "top_p": None} | options
        return complete(argparse.Namespace(positional=prompt, url=None, **fields), extra)

    return run


def test_it_takes_a_prompt_or_standard_input(run, monkeypatch, capsys):
    model = _Model("b", "c")
    assert run(model, "a", max_tokens=3) == 0
    assert capsys.readouterr().out == "bc\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO("piped"))
    run(piped := _Model("x"))
    assert (model.asked, piped.asked) == ([("a", {"max_tokens": 3})], [("piped", {})])
    assert piped.is_closed


def test_nothing_to_complete_is_said_before_a_model_is_loaded(run, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    with pytest.raises(UsageError, match="nothing to complete"):
        run(None)


def test_a_terminal_is_not_waited_for_when_the_prompt_stands_behind_an_unknown_flag(
    run, monkeypatch
):
    terminal = io.StringIO("typed")
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", terminal)
    with pytest.raises(UsageError, match="give a prompt ahead of -m or pipe one in"):
        run(None, extra=["-m", "folder", "Once upon"])
    run(model := _Model("x"))
    assert model.asked == [("typed", {})]


def test_ctrl_c_ends_it_early(run, capsys):
    model = _Model("one ", KeyboardInterrupt(), "two")
    assert run(model, "a") == 130
    assert capsys.readouterr() == ("one \n", " [stopped]")
    assert model.is_closed
    assert model.has_ended


def test_an_error_closes_the_model(run):
    model = _Model("a", UsageError("it broke"))
    with pytest.raises(UsageError):
        run(model, "a")
    assert model.is_closed


def test_input_is_not_read_when_a_prompt_is_given(run, monkeypatch):
    monkeypatch.setattr(builtins, "input", None)
    monkeypatch.setattr(sys, "stdin", None)
    assert run(_Model("x"), "a") == 0
