"""Tests of the committed weights with held-out questions and tools that really run."""

from random import Random

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("jinja2")


@pytest.fixture(scope="module")
def speaker(training, folder):
    from tiny_training.speaker import Speaker

    return Speaker(folder, torch.device("cpu"))


@pytest.mark.long
def test_held_out_questions_are_called_answered_and_ended(speaker, training):
    from tiny_training.evaluate import ask_rows, has_valid_calls, is_right
    from tiny_training.questions import rows

    chosen = [
        row
        for row in rows()
        if row.name
        in {
            "+, 4 digits",
            "-, 3 digits",
            "x, 4 digits",
            "÷, 2 digits",
            "days between two dates",
            "kilometres and miles",
            "degrees Celsius and degrees Fahrenheit",
            "shell: list",
            "shell: read",
            "arithmetic without python",
            "concepts, tools given",
        }
    ]
    assert len(chosen) == 11
    with torch.inference_mode():
        asked = ask_rows(speaker, chosen, 3, is_greedy=True)
    pairs = [pair for row in asked for pair in row]
    assert all(turn.has_ended for _, turn in pairs)
    assert sum(has_valid_calls(*pair) for pair in pairs) >= 0.95 * len(pairs)
    assert sum(bool(is_right(*pair)) for pair in pairs) >= 0.9 * len(pairs)


@pytest.mark.parametrize(
    ("said", "is_listing", "expected"),
    [
        ("Two files: b.md and a.md.", True, True),
        ("Two files: b.md and a.md.", False, False),
        ("Two files: a.md and b.md.", False, True),
        ("Two files: a.md and b.md", False, False),
        ("Two files: a.md and c.md.", True, False),
    ],
)
def test_only_listings_may_come_in_any_order(training, said, is_listing, expected):
    from tiny_training.curriculum import Conversation
    from tiny_training.evaluate import is_right
    from tiny_training.lessons import Draw, exchange
    from tiny_training.speaker import Answer, Turn

    right = "Two files: a.md and b.md."
    drawn = Draw(
        keys=("key",),
        topic="topic",
        opening=exchange("Which files?", right),
        accepted=frozenset({right}),
        is_listing=is_listing,
    )
    turn = Turn(Conversation([], []), folder="folder", answers=[Answer(said, 1, True)])
    assert is_right(drawn, turn) is expected


_CALLED = '<tool_call>\n{{"name": "python", "arguments": {{"code": "print({})"}}}}\n</tool_call>'


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ((_CALLED.format("408 * 1"), "It is 408."), False),
        ((_CALLED.format("34 * 12"), "34 * 12 is 408."), False),
        ((_CALLED.format("34 * 12"), "It is 1408, or 4080, or 408.5."), False),
        ((_CALLED.format("408"), "34 * 12 is 408."), True),
        (("It is 408. " + _CALLED.format("34 * 12"), "408."), True),
        (("34 * 12 is 408.",), True),
        ((_CALLED.format("12 * 34") + _CALLED.format("34 * 12"), "408."), False),
    ],
)
def test_a_result_before_its_response_is_counted(training, answers, expected):
    from tiny_training.curriculum import Conversation
    from tiny_training.evaluate import says_beforehand
    from tiny_training.lessons import Draw, tool_exchange
    from tiny_training.speaker import Answer, Turn
    from tiny_training.tools import definitions

    question = "What is 34 * 12?"
    # The recipe's own calls may contain numbers that their code needs.
    opening = tool_exchange(question, "python", {"code": "print(408 * 1)"}, "408", "408.")
    drawn = Draw(keys=("key",), topic="topic", opening=opening, results=("408",))
    talk = Conversation([opening[0]], definitions(frozenset({"python"}), Random(0)))
    said = [Answer(text, 1, True) for text in answers]
    assert says_beforehand(drawn, Turn(talk, answers=said, responses=["408"])) is expected


@pytest.mark.parametrize("kind", ["find ending", "find name", "list", "search"])
def test_what_find_prints_is_a_listing(training, kind):
    from tiny_training.shell import Shell

    drawn = Shell((kind,)).draw("held-out", Random(0))
    assert drawn.is_listing == kind.startswith("find")


@pytest.mark.parametrize(
    ("name", "text"),
    [("shell", "env"), ("python", "import os; print(dict(os.environ))")],
)
def test_what_a_model_wrote_does_not_see_our_environment(
    training, monkeypatch, tmp_path, name, text
):
    from tiny_training.speaker import run_tool

    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    said = run_tool(name, {"text": text}, str(tmp_path))
    assert "PATH" in said
    assert "SECRET_TOKEN" not in said
    assert "hunter2" not in said


@pytest.mark.parametrize(
    ("text", "tools", "expected"),
    [
        ('<tool_call>\n{"name": "python", "arguments": {"code": "1"}}\n</tool_call>', 1, True),
        ('<tool_call>\n{"name": "python", "arguments": {"cmd": "1"}}\n</tool_call>', 1, False),
        ('<tool_call>\n{"name": "python", "arguments": {"code": 1}}\n</tool_call>', 1, False),
        ('<tool_call>\n{"name": "shell", "arguments": {"code": "1"}}\n</tool_call>', 1, False),
        ('<tool_call>\n{"name": "python", "arguments": {"code": "1"}\n</tool_call>', 1, False),
        ('<tool_call>\n{"name": "python", "arguments": {"code": "1"}}', 1, False),
        ('<tool_call>\n{"name": "python", "arguments": {"code": "1"}}\n</tool_call>', 0, False),
    ],
)
def test_only_calls_that_can_run_count_as_valid(training, text, tools, expected):
    from tiny_training.speaker import calls_of
    from tiny_training.tools import definitions

    given = definitions(frozenset({"python"}), Random(0))[:tools]
    given = [tool for tool in given if tool["function"]["name"] == "python"]
    (call,) = calls_of(text, given)
    assert (call is not None) is expected
