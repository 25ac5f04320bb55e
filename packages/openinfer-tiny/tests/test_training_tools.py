import json
import os
import re
import subprocess
import sys
from datetime import date, timedelta
from fractions import Fraction
from itertools import product
from random import Random

import pytest

pytest.importorskip("jinja2")

_SIGNS = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b}


@pytest.fixture(scope="module")
def python_lessons(training):
    from tiny_training.calculation import Arithmetic, FollowUp, MoreArithmetic
    from tiny_training.calendar_and_units import Dates, Units
    from tiny_training.json_answers import JsonResults

    return [Arithmetic(), MoreArithmetic(), FollowUp(), Dates(), Units(), JsonResults()]


@pytest.fixture(scope="module")
def tool_lessons(training):
    from tiny_training.curriculum import CURRICULUM
    from tiny_training.refusals import Ability

    return [lesson for lesson, _ in CURRICULUM if lesson.needs and not isinstance(lesson, Ability)]


def _calls(drawn):
    for message in drawn.opening:
        for call in message.get("tool_calls", ()):
            yield call["function"]["name"], json.loads(call["function"]["arguments"])


def _code(drawn):
    ((_, arguments),) = _calls(drawn)
    return arguments["code"]


@pytest.mark.parametrize("digits", [2, 3, 4])
@pytest.mark.parametrize("kind", ["add", "subtract", "multiply", "divide"])
def test_one_pair_in_sixteen_is_held_out_per_operation_and_digits(training, kind, digits):
    from tiny_training.calculation import number, pair_key
    from tiny_training.lessons import split_of

    rng = Random(1)
    pairs = [(number(digits, rng), number(digits, rng)) for _ in range(8000)]
    held_out = sum(split_of(pair_key(kind, *pair)) == "held-out" for pair in pairs)
    assert 400 <= held_out <= 600


def test_the_same_sum_in_other_words_is_the_same_pair(training):
    from tiny_training.calculation import pair_key

    assert pair_key("add", 12, 345) == pair_key("add", 345, 12)
    assert pair_key("multiply", 12, 99) == pair_key("multiply", 99, 12)
    assert pair_key("subtract", 12, 99) != pair_key("subtract", 99, 12)
    divisions = ("divide", "divide to digits", "divide exactly", "remainder")
    assert len({pair_key(kind, 84, 7) for kind in divisions}) == 1


def test_held_out_questions_have_new_operands_and_new_words(python_lessons, training):
    from tiny_training.lessons import split_of

    rng = Random(2)
    for lesson in python_lessons:
        for _ in range(20):
            keys = lesson.draw("held-out", rng).keys
            assert {key.partition(":")[0] for key in keys} >= {"pairs", "phrases"}
            assert {split_of(key) for key in keys} == {"held-out"}


def test_no_result_is_said_before_the_tool_says_it(python_lessons):
    rng = Random(3)
    for lesson in python_lessons:
        for _ in range(200):
            said, drawn = "", lesson.draw("train", rng)
            for message in drawn.opening:
                if message["role"] == "tool":
                    result = re.escape(message["content"])
                    assert not re.search(rf"(?<![\w.-]){result}(?![\w]|\.\d)", said)
                said += f"\n{message['content']}"
                for call in message.get("tool_calls", ()):
                    # The result for one unit is a constant that the code must contain.
                    if "/1/1" not in drawn.topic:
                        said += f"\n{call['function']['arguments']}"


def test_a_final_answer_holds_what_the_tool_said(python_lessons):
    rng = Random(4)
    for lesson in python_lessons:
        for _ in range(200):
            drawn = lesson.draw("train", rng)
            assert all(drawn.results[0] in answer for answer in drawn.accepted)
            assert drawn.results[0] in [m["content"] for m in drawn.opening if m["role"] == "tool"]


@pytest.mark.parametrize(("kind", "sign"), [("subtract", "-"), ("divide", "/")])
def test_operands_keep_the_order_of_the_question(training, kind, sign):
    from tiny_training.calculation import Arithmetic

    rng, seen = Random(14), set()
    words = {
        rf"(\d+) ?(?:{sign}|minus|divided by) ?(\d+)": (0, 1),
        r"(?:[Ss]ubtract|[Tt]ake away) (\d+) from (\d+)": (1, 0),
        r"[Dd]ivide (\d+) by (\d+)": (0, 1),
    }
    for _ in range(400):
        drawn = Arithmetic((kind,)).draw("train", rng)
        called = re.findall(r"\d+", _code(drawn))[:2]
        for pattern, order in words.items():
            if asked := re.search(pattern, drawn.opening[0]["content"].replace(",", "")):
                assert called == [asked.groups()[index] for index in order]
                seen.add(pattern)
    assert len(seen) == 2


@pytest.mark.parametrize("sign", _SIGNS)
def test_sums_are_right(training, sign):
    from tiny_training.calculation import Arithmetic

    kinds = {"+": "add", "-": "subtract", "*": "multiply"}
    rng = Random(5)
    for _ in range(100):
        drawn = Arithmetic((kinds[sign],)).draw("train", rng)
        a, b = map(int, re.fullmatch(rf"print\((\d+) \{sign} (\d+)\)", _code(drawn)).groups())
        assert int(drawn.results[0]) == _SIGNS[sign](a, b)
        question = drawn.opening[0]["content"].replace(",", "")
        assert {str(a), str(b)} <= set(re.findall(r"\d+", question))


def test_quotients_are_right(training):
    from tiny_training.calculation import Arithmetic

    rng = Random(6)
    for _ in range(200):
        drawn = Arithmetic(("divide", "divide to digits")).draw("train", rng)
        code = re.fullmatch(r"print\(round\((\d+) / (\d+), (\d)\)\)", _code(drawn))
        a, b, digits = map(int, code.groups())
        error = abs(Fraction(drawn.results[0]) - Fraction(a, b))
        assert error <= Fraction(6, 10 ** (digits + 1))


def test_dates_are_right(training):
    from tiny_training.calendar_and_units import Dates

    rng = Random(7)
    for _ in range(300):
        drawn = Dates().draw("train", rng)
        code, result = _code(drawn), drawn.results[0]
        days = [date(*map(int, d)) for d in re.findall(r"date\((\d+), (\d+), (\d+)\)", code)]
        if len(days) == 2:
            assert int(result) == abs(days[0].toordinal() - days[1].toordinal())
        elif "timedelta" in code:
            number = int(re.search(r"days=(\d+)", code)[1]) * (1 if "+" in code else -1)
            assert date.fromisoformat(result) == days[0] + timedelta(number)
        else:
            weekdays = ("Mon", "Tues", "Wednes", "Thurs", "Fri", "Satur", "Sun")
            assert result == f"{weekdays[days[0].weekday()]}day"


def test_at_least_ten_pairs_of_units_go_both_ways(training):
    from tiny_training.calendar_and_units import Units

    names = Units().pairs
    assert len(set(names)) == len(names) >= 10
    rng = Random(8)
    for pair in range(len(names)):
        topics = {Units(pair).draw("train", rng).topic.split("/")[0] for _ in range(40)}
        assert len(topics) == 2


@pytest.mark.parametrize(
    ("unit", "into", "value", "expected"),
    [
        ("kilometres", "miles", "10", "6.21"),
        ("miles", "kilometres", "10", "16.09"),
        ("degrees Celsius", "degrees Fahrenheit", "100", "212.0"),
        ("degrees Fahrenheit", "degrees Celsius", "50", "10.0"),
        ("kilograms", "pounds", "70", "154.32"),
        ("feet", "metres", "6", "1.83"),
        ("hours", "minutes", "3", "180"),
    ],
)
def test_units_are_right(training, unit, into, value, expected):
    from tiny_training.calculation import run_code
    from tiny_training.grammar import load

    formulas = {}
    for pair in load("python")["units"]["pairs"]:
        one, other = (names[0] for names in pair["names"])
        formulas |= {(one, other): pair["there"], (other, one): pair["back"]}
    code = f"print(round({formulas[unit, into].format(x=value)}, 2))"
    assert run_code(code) == expected


def test_calls_name_a_given_tool_and_its_parameter(tool_lessons, training):
    from tiny_training.curriculum import question
    from tiny_training.tokenizer import Renderer

    rng, renderer = Random(9), Renderer()
    for lesson in tool_lessons:
        for _ in range(30):
            talk, drawn = question(lesson, "train", rng)
            given = {
                tool["function"]["name"]: set(tool["function"]["parameters"]["properties"])
                for tool in talk.tools
            }
            assert all(set(arguments) == given[name] for name, arguments in _calls(drawn))
            talk.messages[:] = drawn.opening
            text = renderer.render(talk)
            called = re.findall(r"<tool_call>\n(.+)\n</tool_call>", text)
            assert [json.loads(call) for call in called] == [
                {"name": name, "arguments": arguments} for name, arguments in _calls(drawn)
            ]


def test_definitions_differ_and_are_rendered_as_servers_do(training):
    from tiny_training.curriculum import Conversation
    from tiny_training.tokenizer import Renderer
    from tiny_training.tools import definitions

    rng = Random(10)
    drawn = [definitions(frozenset({"python", "shell"}), rng) for _ in range(100)]
    names = [[tool["function"]["name"] for tool in tools] for tools in drawn]
    assert all({"python", "shell"} <= set(group) for group in names)
    assert any(len(group) > 2 for group in names)
    assert len({group.index("python") < group.index("shell") for group in names}) == 2
    assert len({json.dumps(tools) for tools in drawn}) > 90
    tool = {"type": "function", "function": {"name": "é", "description": "a < b's"}}
    text = Renderer().render(Conversation([{"role": "user", "content": "Hi"}], [tool]))
    assert json.dumps(tool, ensure_ascii=False) in text


def test_without_the_tool_nothing_is_called(training):
    from tiny_training.curriculum import CURRICULUM
    from tiny_training.refusals import Without

    rng = Random(11)
    refusing = [lesson for lesson, _ in CURRICULUM if isinstance(lesson, Without)]
    assert {tool for lesson in refusing for tool in lesson.shuns} == {"python", "shell"}
    for lesson, _ in product(refusing, range(50)):
        drawn = lesson.draw("train", rng)
        assert not list(_calls(drawn))
        assert all(f"{tool} tool" in drawn.opening[-1]["content"] for tool in lesson.shuns)


def test_json_answers_have_the_keys_that_were_asked_for(training):
    from tiny_training.json_answers import JsonAnswers

    rng = Random(12)
    for _ in range(200):
        drawn = JsonAnswers().draw("train", rng)
        question, answer = (message["content"] for message in drawn.opening)
        values = json.loads(answer)
        assert values
        assert all(key in question for key in values)
        assert all(str(value) in question for value in values.values() if value is not None)


@pytest.mark.skipif(sys.platform != "linux", reason="the responses are those of GNU tools")
def test_shell_responses_are_what_the_commands_print(training, tmp_path):
    from tiny_training.shell import Shell

    rng = Random(13)
    for kind, number in product(Shell().kinds, range(6)):
        drawn = Shell((kind,)).draw("train", rng)
        folder = tmp_path / f"{kind}-{number}"
        folder.mkdir()
        for path, text in drawn.files.items():
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_text(text)
        ((_, arguments),) = _calls(drawn)
        run = subprocess.run(
            ["sh", "-c", arguments["command"]],
            cwd=folder,
            env={"PATH": os.defpath, "LC_ALL": "C"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if kind == "where":
            assert run.stdout.strip() == str(folder)
            continue
        assert sorted(run.stdout.strip().splitlines()) == sorted(drawn.results[0].splitlines())
