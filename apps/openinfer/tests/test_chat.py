import argparse
import builtins
import io
import sys

import pytest

import openinfer._chat as chat_module
from openinfer import RemoteServerError, UsageError
from openinfer._chat import chat, complete


class _Model:
    """Answers with what it was told to; remembers what it was asked."""

    name = "fake"

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []
        self.is_closed = False
        self.num_ended = 0

    def stream_chat(self, messages, options):
        self.asked.append(([dict(message) for message in messages], dict(options)))
        return self._stream()

    def stream_completion(self, prompt, options):
        self.asked.append((prompt, dict(options)))
        return self._stream()

    def _stream(self):
        try:
            for piece in self.answers.pop(0):
                if isinstance(piece, BaseException):
                    raise piece
                yield piece
        finally:
            self.num_ended += 1

    def close(self):
        self.is_closed = True


@pytest.fixture
def talk(monkeypatch, capsys):
    """Runs a conversation: (status, stdout, stderr)."""

    def run(model, *lines, command=chat, **options):
        given = iter(lines)

        def read(prompt):
            line = next(given, EOFError())
            if isinstance(line, BaseException):
                raise line
            return line

        monkeypatch.setattr(builtins, "input", read)
        monkeypatch.setattr(chat_module, "_open_model", lambda *_: model)
        defaults = {"positional": None, "url": None, "system": None}
        fields = defaults | {"max_tokens": None, "temperature": None, "top_p": None} | options
        status = command(argparse.Namespace(**fields), ())
        return status, *capsys.readouterr()

    return run


def _user(text):
    return {"role": "user", "content": text}


def _assistant(text):
    return {"role": "assistant", "content": text}


def test_a_talk_remembers_itself_and_ends_with_the_input(talk):
    model = _Model(["Hel", "lo!"], ["Fine."])
    status, out, err = talk(model, "Hi", "", "How are you?")
    assert (status, out) == (0, "Hello!\nFine.\n")
    assert "fake" in err
    assert [messages for messages, _ in model.asked] == [
        [_user("Hi")],
        [_user("Hi"), _assistant("Hello!"), _user("How are you?")],
    ]
    assert model.is_closed


def test_a_system_message_comes_first_and_options_go_along(talk):
    model = _Model(["x"])
    talk(model, "Hi", system="Be brief.", temperature=0.0, max_tokens=5)
    assert model.asked == [
        (
            [{"role": "system", "content": "Be brief."}, _user("Hi")],
            {"temperature": 0.0, "max_tokens": 5},
        )
    ]


def test_ctrl_c_stops_the_answer_and_keeps_the_talk(talk):
    model = _Model(["one ", "two", KeyboardInterrupt(), "three"], ["Yes."])
    status, out, _ = talk(model, "Count", "Go on?")
    assert (status, out) == (0, "one two [stopped]\nYes.\n")
    assert model.asked[1][0][1:] == [_assistant("one two"), _user("Go on?")]
    assert model.num_ended == 2


def test_ctrl_c_at_the_prompt_is_an_empty_line(talk):
    model = _Model(["Hello."])
    assert talk(model, KeyboardInterrupt(), "Hi")[:2] == (0, "\nHello.\n")


def test_the_end_of_input_at_once_is_no_error(talk):
    model = _Model()
    assert talk(model)[:2] == (0, "")
    assert model.is_closed


def test_an_error_closes_the_model(talk):
    model = _Model(["a", RemoteServerError("it broke")])
    with pytest.raises(RemoteServerError):
        talk(model, "Hi")
    assert model.is_closed
    assert model.num_ended == 1


def test_complete_takes_a_prompt_or_standard_input(talk, monkeypatch):
    model = _Model(["b", "c"])
    assert talk(model, command=complete, positional="a")[:2] == (0, "bc\n")
    monkeypatch.setattr(sys, "stdin", io.StringIO("piped"))
    talk(piped := _Model(["x"]), command=complete)
    assert (model.asked, piped.asked) == ([("a", {})], [("piped", {})])
    assert piped.is_closed


def test_nothing_to_complete_is_said_before_a_model_is_loaded(talk, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    with pytest.raises(UsageError, match="nothing to complete"):
        talk(None, command=complete)


def test_flags_of_the_engine_have_no_effect_on_a_server():
    namespace = argparse.Namespace(url="http://x", model=None)
    with pytest.raises(UsageError, match="--line-option has no effect with --url"):
        chat_module._open_model(namespace, ("--line-option", "3"), None)


@pytest.mark.parametrize(
    ("dest", "flag"), [("max_num_seqs", "--max-num-seqs"), ("revision", "--revision")]
)
def test_known_flags_that_a_server_would_not_see_are_refused(dest, flag):
    namespace = argparse.Namespace(url="http://x", model="m", **{dest: "4"})
    with pytest.raises(UsageError, match=f"{flag} has no effect with --url"):
        chat_module._open_model(namespace, (), None)
