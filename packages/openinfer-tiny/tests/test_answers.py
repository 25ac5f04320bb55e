"""The committed weights, asked what no training text holds, with tools that really run."""

from random import Random

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("jinja2")


@pytest.fixture(scope="module")
def speaker(training, folder):
    from tiny_training.speaker import Speaker

    return Speaker(folder, torch.device("cpu"))


def test_held_out_questions_are_called_answered_and_ended(speaker, training):
    from tiny_training.evaluate import ask_rows, has_valid_calls, is_right, rows

    chosen = [
        row
        for row in rows()
        if row.name
        in {
            "+, 4 digits",
            "-, 3 digits",
            "x, 4 digits",
            "÷, 2 digits",
            "dates: between",
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
