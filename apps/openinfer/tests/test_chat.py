import argparse
import builtins
import json
import sys

import pytest

import openinfer.terminal._chat as chat_module
import openinfer.terminal._screen as screen_module
from openinfer import RemoteServerError, UsageError
from openinfer.terminal._chat import MAX_ROUNDS, chat
from openinfer.terminal._terminal_model import Ended
from openinfer_text import (
    Content,
    Reasoning,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)

CTRL_C = KeyboardInterrupt()


class _Model:
    """Model that streams given responses and records its requests."""

    name = "fake"

    def __init__(self, *answers, num_chars=None):
        self.answers = list(answers)
        self.num_chars = num_chars
        """Length of its context, at one token per character. None: unknown."""
        self.asked = []
        self.tools = []
        self.is_closed = False
        self.num_ended = 0

    def stream_chat(self, messages, options, tools=()):
        self.asked.append(([dict(message) for message in messages], dict(options)))
        self.tools.append([tool["function"]["name"] for tool in tools])
        try:
            answer = self.answers.pop(0)
            for piece in answer:
                if isinstance(piece, BaseException):
                    raise piece
                yield Content(piece) if isinstance(piece, str) else piece
            if not isinstance(answer[-1], Ended):
                yield Ended("stop")
        finally:
            self.num_ended += 1

    def num_tokens_left(self, messages, tools=()):
        if self.num_chars is None:
            return None
        return self.num_chars - sum(len(message["content"]) for message in messages)

    def close(self):
        self.is_closed = True


def _call(name, arguments, index=0, reason="tool_calls"):
    text = json.dumps(arguments) if isinstance(arguments, dict) else arguments
    return [
        ToolCallStart(index, f"call_{index}", name),
        ToolCallArguments(index, text),
        ToolCallEnd(index),
        Ended(reason),
    ]


@pytest.fixture
def talk(monkeypatch, capsys):
    """Runs a conversation with input lines, typed or piped in; returns (status, stdout, stderr)."""

    def run(model, *lines, is_typed=False, is_seen=True, **options):
        given = iter(lines)

        def read(prompt=""):
            if is_typed:
                print(prompt, end="", flush=True)
            line = next(given, EOFError())
            if isinstance(line, BaseException):
                raise line
            return line

        monkeypatch.setattr(builtins, "input", read)
        monkeypatch.setattr(sys.stdin, "isatty", lambda: is_typed, raising=False)
        monkeypatch.setattr(sys.stderr, "isatty", lambda: is_typed and is_seen, raising=False)
        monkeypatch.setenv("NO_COLOR", "1")
        # Standard input is no real terminal here; test_screen.py uses one.
        monkeypatch.setattr(screen_module, "_drop_type_ahead", lambda: None)
        monkeypatch.setattr(chat_module, "open_model", lambda *_: model)
        defaults = {"positional": None, "url": None, "system": None, "tools": ""}
        defaults |= {"run_tools": False}
        fields = defaults | {"max_tokens": None, "temperature": None, "top_p": None} | options
        status = chat(argparse.Namespace(**fields), ())
        return status, *capsys.readouterr()

    return run


def _user(text):
    return {"role": "user", "content": text}


def _assistant(text):
    return {"role": "assistant", "content": text}


def test_a_talk_remembers_itself_and_ends_with_the_input(talk):
    model = _Model(["Hel", "lo!"], ["Fine."])
    assert talk(model, "Hi", "", "How are you?") == (0, "Hello!\nFine.\n", "")
    assert [messages for messages, _ in model.asked] == [
        [_user("Hi")],
        [_user("Hi"), _assistant("Hello!"), _user("How are you?")],
    ]
    assert model.is_closed


def test_who_types_is_greeted_and_prompted(talk):
    _, out, err = talk(_Model(["Hello!\n"]), "Hi", is_typed=True)
    assert "fake, by OpenInfer" in err
    assert "Try:" in err
    assert "/help" in err
    assert "Hello!\n" in out
    assert ">" in out + err
    _, _, err = talk(_Model(), is_typed=True, tools="python,shell")
    assert "may call python, shell on this machine, without a sandbox; you are asked" in err
    _, _, err = talk(_Model(), is_typed=True, tools="python", run_tools=True)
    assert "without a sandbox; you are NOT asked" in err


def test_a_system_message_comes_first_and_options_go_along(talk):
    model = _Model(["x"])
    talk(model, "Hi", system="Be brief.", temperature=0.0, max_tokens=5)
    system = {"role": "system", "content": "Be brief."}
    assert model.asked == [([system, _user("Hi")], {"temperature": 0.0, "max_tokens": 5})]


def test_ctrl_c_stops_the_answer_and_keeps_the_talk(talk):
    model = _Model(["one ", "two", CTRL_C, "three"], [CTRL_C], ["Yes."])
    status, out, err = talk(model, "Count", "Go on?", "And?", is_typed=True)
    assert (status, out) == (0, "one two\nYes.\n")
    assert err.count("[stopped]\n") == 2
    assert model.asked[2][0] == [
        *(_user("Count"), _assistant("one two"), _user("Go on?"), _assistant("")),
        _user("And?"),
    ]
    assert model.num_ended == 3


def test_ctrl_c_at_the_prompt_is_an_empty_line(talk):
    model = _Model(["Hello."])
    assert talk(model, CTRL_C, "Hi", is_typed=True)[:2] == (0, "Hello.\n")


@pytest.mark.parametrize("lines", [("Hi",), (CTRL_C, "Hi")])
def test_ctrl_c_ends_a_piped_talk(talk, lines):
    model = _Model(["one ", CTRL_C], ["two"])
    with pytest.raises(KeyboardInterrupt):
        talk(model, *lines)
    assert model.is_closed
    assert len(model.asked) <= 1


def test_the_end_of_input_at_once_is_no_error(talk):
    model = _Model()
    assert talk(model)[:2] == (0, "")
    assert model.is_closed


def test_an_error_ends_a_piped_talk_and_closes_the_model(talk):
    model = _Model(["a", RemoteServerError("it broke")])
    with pytest.raises(RemoteServerError):
        talk(model, "Hi")
    assert model.is_closed
    assert model.num_ended == 1


def test_an_error_is_shown_to_who_types_and_the_turn_is_forgotten(talk):
    model = _Model(["a", RemoteServerError("it broke")], ["Fine."])
    status, _, err = talk(model, "Hi", "Again", is_typed=True)
    assert status == 0
    assert "it broke" in err
    assert model.asked[1][0] == [_user("Again")]


def test_commands(talk):
    model = _Model(["a"], ["b"], ["c"])
    lines = [
        "/help",
        "one",
        "/system Be brief.",
        "two",
        "/new",
        "/system",
        "/nonsense",
        "/etc/passwd?",
    ]
    _, out, err = talk(model, *lines, "/quit", "never", is_typed=False)
    assert out == "a\nb\nc\n"
    for words in (
        "/clear",
        "new conversation",
        "system message: Be brief.",
        "/nonsense is not a command",
    ):
        assert words in err
    system = {"role": "system", "content": "Be brief."}
    assert [messages for messages, _ in model.asked] == [
        [_user("one")],
        [system, _user("one"), _assistant("a"), _user("two")],
        [system, _user("/etc/passwd?")],
    ]


def test_tools_can_be_listed_and_changed(talk):
    model = _Model(["a"], ["b"])
    lines = ["/tools", "one", "/tools shell", "/tools nope", "two", "/tools none"]
    _, _, err = talk(model, *lines, tools="python")
    assert model.tools == [["python"], ["shell"]]
    assert "tools: python (available: python, shell)" in err
    assert "no tool 'nope'" in err
    assert "tools: none" in err


def test_an_unknown_tool_is_said_before_a_model_is_loaded(talk):
    with pytest.raises(UsageError, match="no tool 'x'"):
        talk(None, tools="x")


def test_reasoning_is_shown_apart_and_goes_back(talk):
    model = _Model([Reasoning("hm"), Reasoning("."), "Yes."], ["b"])
    assert talk(model, "Hi", "x") == (0, "Yes.\nb\n", "hm.\n")
    assert model.asked[1][0][1] == {
        "role": "assistant", "content": "Yes.", "reasoning_content": "hm.",
    }  # fmt: skip


def test_length_is_told(talk):
    assert talk(_Model(["a", Ended("length")]), "Hi")[2] == "[cut off: no tokens left]\n"


CODE = _call("python", {"code": "print(6 * 7)"})


def test_a_call_is_shown_asked_for_and_run(talk):
    model = _Model(["I see. ", *CODE], ["42."])
    _, out, err = talk(model, "6 * 7?", "y", is_typed=True, tools="python")
    assert "[python]\n  print(6 * 7)\n" in err
    assert "run it? [y/N/always]" in out + err
    assert "  42\n" in err
    assert "I see. \n" in out
    assert "42.\n" in out
    assert model.asked[1][0] == [
        _user("6 * 7?"),
        {
            "role": "assistant",
            "content": "I see. ",
            "tool_calls": [
                {
                    "id": "call_0",
                    "type": "function",
                    "function": {"name": "python", "arguments": '{"code": "print(6 * 7)"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_0", "content": "42"},
    ]


@pytest.mark.parametrize("answer", ["", "n", "what?", CTRL_C, EOFError()])
def test_anything_but_yes_is_no_and_the_talk_goes_on(talk, answer):
    model = _Model(CODE, ["Fine."])
    talk(model, "6 * 7?", answer, "Never mind.", is_typed=True, tools="python")
    if not isinstance(answer, EOFError):
        tool, user = model.asked[1][0][2:]
        assert tool["content"] == "not run: the user did not allow it"
        assert user == _user("Never mind.")


def test_always_asks_once(talk):
    again = _call("python", {"code": "print(1)"})
    model = _Model(CODE, again, ["Done."], again, ["Done."])
    _, out, err = talk(model, "x", "always", "y", is_typed=True, tools="python")
    assert (out + err).count("run it?") == 1
    assert len(model.asked) == 5


@pytest.mark.parametrize("command", [None, "/tools python,shell", "/clear"])
def test_always_is_for_one_tool_until_the_tools_or_the_talk_change(talk, command):
    shell = _call("shell", {"command": "echo hi"})
    # Without a command, the second question is about the other tool; after a command, about the
    # same one.
    model = _Model(CODE, ["Done."], CODE if command else shell, ["Done."])
    lines = ["x", "always", *([command] if command else []), "y", "n"]
    _, out, err = talk(model, *lines, is_typed=True, tools="python,shell")
    assert (out + err).count("run it?") == 2
    assert model.asked[1][0][2]["content"] == "42"
    assert len(model.asked) == 3, "the second call was refused"


def test_who_does_not_see_the_call_is_not_asked(talk):
    model = _Model(CODE, ["Fine."])
    _, out, err = talk(model, "6 * 7?", "And?", is_typed=True, is_seen=False, tools="python")
    assert "run it?" not in out + err
    assert "no terminal on which to ask" in err
    assert model.asked[1][0][2]["content"].startswith("not run")


def test_piped_calls_are_not_run_unless_told(talk):
    model = _Model(CODE, ["Fine."])
    with pytest.raises(UsageError, match=r"calls python; .* --run-tools runs calls unasked"):
        talk(model, "6 * 7?", "And?", tools="python")
    assert len(model.asked) == 1
    model = _Model(CODE, ["42."])
    assert talk(model, "6 * 7?", tools="python", run_tools=True)[:2] == (0, "42.\n")
    assert model.asked[1][0][2]["content"] == "42"


def test_calls_that_cannot_be_run_are_told_to_the_model(talk):
    calls = [*_call("browser", {})[:3], *_call("python", "{", index=1)]
    model = _Model(calls, ["Oh."])
    talk(model, "x", tools="python,shell", run_tools=True)
    results = [message["content"] for message in model.asked[1][0][2:]]
    assert results == [
        "error: there is no tool 'browser'; available: python, shell",
        'error: the arguments must be a JSON object with the string "code"',
    ]


def test_a_result_is_cut_to_what_the_context_leaves(talk):
    long = _call("python", {"code": "print('x' * 3000)"})
    model = _Model(long, ["Done."], num_chars=2000)
    _, _, err = talk(model, "x", tools="python", run_tools=True)
    result = model.asked[1][0][2]["content"]
    kept = result.count("x")
    assert 1800 < kept < 2000 - 128
    assert result.endswith("\n[cut off here: the context has no room for more]")
    assert model.num_tokens_left(model.asked[1][0]) >= 128
    assert f"[the model reads {result.index(chr(10))} of these 3000 characters" in err
    for roomy in (_Model(long, ["Done."], num_chars=9000), _Model(long, ["Done."])):
        _, _, err = talk(roomy, "x", tools="python", run_tools=True)
        assert roomy.asked[1][0][2]["content"] == "x" * 3000
        assert "the model reads" not in err


def test_results_of_several_calls_share_the_room(talk):
    code = {"code": "print('x' * 3000)"}
    calls = [*_call("python", code)[:3], *_call("python", code, index=1)]
    model = _Model(calls, ["Done."], num_chars=2000)
    talk(model, "x", tools="python", run_tools=True)
    first, second = (message["content"].count("x") for message in model.asked[1][0][2:4])
    assert abs(first - second) < 100
    assert model.num_tokens_left(model.asked[1][0]) >= 128


def test_a_full_context_gets_a_remark_for_a_result(talk):
    model = _Model(_call("python", {"code": "print('x' * 300)"}), ["?"], num_chars=20)
    _, _, err = talk(model, "x" * 30, tools="python", run_tools=True)
    result = model.asked[1][0][2]["content"]
    assert result == "[cut off here: the context has no room for more]"
    assert "[the model reads 0 of these 300 characters" in err


def test_rounds_are_bounded(talk):
    model = _Model(*[CODE] * 20)
    _, _, err = talk(model, "x", tools="python", run_tools=True)
    assert MAX_ROUNDS == 8
    assert "stopped after 8 rounds" in err
    # A response ends the turn: the model is asked once more, without tools.
    assert model.tools == [["python"]] * 8 + [[]]


def test_a_turn_whose_rounds_are_over_ends_by_an_answer(talk):
    model = _Model(*[CODE] * 8, ["It is 42."], ["Yes."])
    assert talk(model, "x", "Sure?", tools="python", run_tools=True)[1] == "It is 42.\nYes.\n"
    result, answer, question = model.asked[9][0][-3:]
    assert (result["role"], answer, question) == ("tool", _assistant("It is 42."), _user("Sure?"))


def test_a_call_that_was_cut_off_is_not_kept(talk):
    cut = [*CODE[:1], ToolCallArguments(0, '{"code": "pri'), Ended("length")]
    model = _Model(["a", *cut], ["b"], ["c", *CODE[:2], CTRL_C], ["d"])
    talk(model, "1", "2", "3", "4", is_typed=True, tools="python", run_tools=True)
    assert model.asked[3][0] == [
        *(_user("1"), _assistant("a"), _user("2"), _assistant("b")),
        *(_user("3"), _assistant("c"), _user("4")),
    ]


def test_ctrl_c_while_a_call_runs_answers_all_calls(talk, monkeypatch):
    def interrupted(tool, arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(chat_module, "run_call", interrupted)
    calls = [*CODE[:3], *_call("python", {"code": "2"}, index=1)]
    model = _Model(calls, ["b"])
    _, _, err = talk(model, "1", "2", is_typed=True, tools="python", run_tools=True)
    assert "[stopped]" in err
    results = model.asked[1][0][2:4]
    assert [message["tool_call_id"] for message in results] == ["call_0", "call_1"]
    assert [message["content"] for message in results] == [
        "error: the user stopped it; it may have done part of its work",
        "not run: the user interrupted it",
    ]


def test_a_call_that_the_model_breaks_off_is_said(talk):
    model = _Model([*_call("python", '{"code": "pri')[:2], Ended("stop")])
    _, _, err = talk(model, "hi", is_typed=True, tools="python")
    assert "[the model broke off a call; nothing was run]" in err


def test_a_full_talk_says_how_to_go_on(talk):
    model = _Model(["cut", Ended("length")], [RemoteServerError("too long")])
    _, _, err = talk(model, "hi", "more", is_typed=True)
    assert "[cut off: no tokens left; /clear begins a new conversation]" in err
    assert "too long\n[the conversation so far is kept; /clear begins a new one]" in err
    _, _, err = talk(_Model(["cut", Ended("length")]), "hi", is_typed=True, max_tokens=3)
    assert "[cut off: no tokens left]" in err


def test_run_tools_without_tools_is_refused_where_none_can_be_named_later(talk):
    with pytest.raises(UsageError, match="--run-tools has no effect"):
        talk(_Model(), run_tools=True)
    assert talk(_Model(), is_typed=True, run_tools=True)[0] == 0
