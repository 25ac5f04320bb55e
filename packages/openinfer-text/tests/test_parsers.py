"""Golden outputs through both parsers, cut at every character and at random places."""

import itertools
import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openinfer_text import (
    AssistantTurn,
    Content,
    OutputParser,
    ParseContext,
    Reasoning,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from openinfer_text.parsers._hermes import HermesParser
from openinfer_text.parsers._think import QWEN3

F = ("f", '{"a": 1}')
ONE = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
CUT, CUT_ARGUMENTS = ONE[: ONE.index("1}")], '{"a": '
DEEP = '{"a": [{"b": "}"}, []], "c": "\\\\"}'
CODE = json.dumps({"code": 'print("</tool_call>")\n# {"name": [\\'})
MENTION = "Write <tool_call> in front of a call."


def call(arguments, name="f", mark="\n"):
    return f'<tool_call>{mark}{{"name": "{name}", "arguments": {arguments}}}{mark}</tool_call>'


# text: content, reasoning, calls, and the number of complete calls (default: all)
GOLDEN = {
    "plain": ("Hello.\n\n", "Hello.\n\n", "", []),
    "one call": (ONE, "", "", [F]),
    "compact": (
        '<tool_call>{"name":"f","arguments":{"a":1}}</tool_call>', "", "", [("f", '{"a":1}')],
    ),
    "white space": (
        '<tool_call> \n {\n"name" : "f" ,\n "arguments"\n: {"a": 1}\n}\n \n</tool_call>\n',
        "", "", [F],
    ),
    "text around": (f"Let me see.\n\n{ONE}\nDone. ", "Let me see.\nDone.", "", [F]),
    "text behind": (f"{ONE}\n\nDone.", "Done.", "", [F]),
    "several": (f"Two:\n{ONE}\n{call('{}', 'g')}", "Two:", "", [F, ("g", "{}")]),
    "arguments first": (
        '<tool_call>\n{"arguments": {"a": 1}, "name": "f"}\n</tool_call>', "", "", [F],
    ),
    "further keys": (
        '<tool_call>\n{"id": "x", "name": "f", "arguments": {"a": 1}}\n</tool_call>', "", "", [F],
    ),
    "no arguments": ('<tool_call>\n{"name": "f"}\n</tool_call>', "", "", [("f", "{}")]),
    "null arguments": (call("null"), "", "", [("f", "{}")]),
    "parameters": ('<tool_call>{"name": "f", "parameters": {"a": 1}}</tool_call>', "", "", [F]),
    "arguments as a string": (call(r'"{\"a\": 1}"'), "", "", [F]),
    "markers in a string": (call(CODE), "", "", [("f", CODE)]),
    "an escaped name": (call('{"a": 1}', r"f\u00fc"), "", "", [("fü", '{"a": 1}')]),
    "deep": (call(DEEP), "", "", [("f", DEEP)]),
    "half a surrogate pair": (
        r'<tool_call>{"arguments": {"a": "\ud83d", "b": "ü"}, "name": "f"}</tool_call>',
        "", "", [("f", r'{"a": "\ud83d", "b": "\u00fc"}')],
    ),
    "half a pair, streamed": (
        call(r'{"a": "\ud83d"}'), "", "", [("f", r'{"a": "\ud83d"}')],
    ),
    "half a pair in a string": (
        call(r'"{\"a\": \"\\ud83d\"}"'), "", "", [("f", r'{"a": "\ud83d"}')],
    ),
    "no ASCII": (
        '<tool_call>{"arguments": {"a": "ü"}, "name": "f"}</tool_call>',
        "", "", [("f", '{"a": "ü"}')],
    ),
    "keys behind": (
        '<tool_call>{"name":"f","arguments":{"a":1}, "id": {"x": "}"}}</tool_call>after',
        "after", "", [("f", '{"a":1}')],
    ),
    "keys behind, and no end mark": (
        '<tool_call>{"name":"f","arguments":{"a":1},\n"id":"x"}\nafter',
        "after", "", [("f", '{"a":1}')],
    ),
    "keys behind that are cut": (
        '<tool_call>{"name":"f","arguments":{"a":1}, "id": "x', "", "", [("f", '{"a":1}')],
    ),
    "prose behind the arguments": (
        '<tool_call>{"name":"f","arguments":{"a": 1}, and "so"', ', and "so"', "", [F],
    ),
    "quotes behind the arguments": (
        '<tool_call>{"name":"f","arguments":{"a":1}, "so" it is!', ', "so" it is!',
        "", [("f", '{"a":1}')],
    ),
    "arguments twice": (
        '<tool_call>{"name":"f","arguments":{"a": 1}, "arguments":{"a":2}}</tool_call>',
        "", "", [F],
    ),
    "two objects": (
        '<tool_call>{"name":"f","arguments":{"a": 1}}\n{"name": "g"}</tool_call>\nDone.',
        "Done.", "", [F, ("g", "{}")],
    ),
    "two objects, one brace missing": (
        '<tool_call>{"name":"f","arguments":{"a": 1} {"name":"f","arguments":{"a": 1}}</tool_call>',
        "", "", [F, F],
    ),
    "an object behind that is no call": (
        t := '<tool_call>{"name":"f","arguments":{"a": 1}} {"a": 1} so', '{"a": 1} so', "", [F],
    ),
    "blank for long behind the arguments": (
        f'<tool_call>{{"name":"f","arguments":{{"a": 1}}{" " * 2000}}}{" " * 2000}</tool_call>',
        "", "", [F],
    ),
    "no end mark": (ONE[: -len("\n</tool_call>")], "", "", [F]),
    "end mark cut": (ONE[:-5], "", "", [F]),
    "no brace of its own": (ONE.replace("}}", "}"), "", "", [F]),
    "no end mark between": (f"{ONE[:-12]}{ONE}", "", "", [F, F]),
    # cut by max_tokens
    "cut in the arguments": (CUT, "", "", [("f", CUT_ARGUMENTS)], 0),
    "cut in a string": (
        '<tool_call>\n{"name": "f", "arguments": {"code": "pri',
        "", "", [("f", '{"code": "pri')], 0,
    ),
    "cut in the second": (f"{ONE}\n{CUT}", "", "", [F, ("f", CUT_ARGUMENTS)], 1),
    "cut in the head": (ONE[:30], ONE[:30], "", []),
    "cut in the marker": ("So <tool_c", "So <tool_c", "", []),
    # no call
    "a mention": (MENTION, MENTION, "", []),
    "a mention, then a call": (f"{MENTION}\n{ONE}", MENTION, "", [F]),
    "a mention in a mention": (
        f"<tool_call> <tool_call>{{ {ONE}", "<tool_call> <tool_call>{", "", [F],
    ),
    "no JSON": ("<tool_call>\nf(1)\n</tool_call>", "<tool_call>\nf(1)\n</tool_call>", "", []),
    "no name": (t := '<tool_call>\n{"arguments": {"a": 1}}\n</tool_call>', t, "", []),
    "a name that is no string": (t := '<tool_call>{"name": 3}</tool_call>', t, "", []),
    "an empty name": (t := '<tool_call>{"name": "", "arguments": {}}</tool_call>', t, "", []),
    "a bad escape in the name": (t := call("{}", "\\q"), t, "", []),
    "arguments that are no object": (t := call("[1]"), t, "", []),
    "unbalanced in the head": (
        (t := '<tool_call>\n{"name": "f"\n</tool_call>') + f"\n{ONE}", t, "", [F],
    ),
    "half a pair as a name": (
        t := call("{}", r"\ud83d"), t, "", [],
    ),
    "half a pair as a name, read whole": (
        t := r'<tool_call>{"arguments": {}, "name": "\ud83d"}</tool_call>', t, "", [],
    ),
    "NaN": (t := '<tool_call>{"arguments": {"a": NaN}, "name": "f"}</tool_call>', t, "", []),
    "infinity": (t := '<tool_call>{"arguments": {"a": 1e999}, "name": "f"}</tool_call>', t, "", []),
    "blank for long": (t := "<tool_call>" + " " * 1500 + '{"name": "f"}', t, "", []),
    "a long name": (call('{"a": 1}', "n" * 2000), "", "", [("n" * 2000, '{"a": 1}')]),
    "an object that is no call": (t := '<tool_call>{"a": {"b": 1}}</tool_call> x', t, "", []),
    # announced, then malformed: the client gets the text that the model wrote
    "no closing quote": (
        '<tool_call>\n{"name": "f", "arguments": {"code": "print(1)}}\n</tool_call>\nDone.',
        "Done.", "", [("f", '{"code": "print(1)}}')],
    ),
    "a bare line break": (
        call('{"code": "a = {}\nprint(a)"}'), "", "", [("f", '{"code": "a = {}\nprint(a)"}')],
    ),
    "unbalanced arguments": (
        '<tool_call>\n{"name": "f", "arguments": {"a": [1}\n</tool_call>',
        "", "", [("f", '{"a": [1}\n')],
    ),
    "broken and cut": (
        '<tool_call>\n{"name": "f", "arguments": {"code": "a\nb} </tool', "", "",
        [("f", '{"code": "a\nb} </tool')], 0,
    ),
    # reasoning
    "reasoning": ("<think>\nhm\n\nso\n</think>\n\nHi.\n", "Hi.\n", "hm\n\nso", []),
    "reasoning on one line": (" <think>hm</think>Hi.", "Hi.", "hm", []),
    "no thought": ("<think>\n\n</think>\n\nHi.", "Hi.", "", []),
    "reasoning that is cut": ("<think>\nhm\nso\n</thi", "", "hm\nso\n</thi", []),
    "reasoning, then a call": (f"<think>\nhm\n</think>\n\n{ONE}", "", "hm", [F]),
    "a call in the reasoning": (f"<think>\n{ONE}\n</think>\n\nNo.", "No.", ONE, []),
    "a mention of thinking": ("I <think> so </think>.", "I <think> so </think>.", "", []),
    "cut before thinking": (" <thi", " <thi", "", []),
}  # fmt: skip


def _run(text, cuts=(), turn="", **options):
    ids = (f"call_{n}" for n in itertools.count())
    context = ParseContext(turn=turn, new_call_id=lambda: next(ids))
    parser = OutputParser(context, reasoning=QWEN3, tools=HermesParser(), **options)
    bounds = [0, *sorted(cuts), len(text)]
    pieces = [p for start, end in itertools.pairwise(bounds) for p in parser.push(text[start:end])]
    return [*pieces, *parser.finish()], parser


def _outcome(text, cuts=(), **options):
    pieces, parser = _run(text, cuts, **options)
    assert all(getattr(piece, "text", "x") for piece in pieces), "no empty pieces"
    turn = AssistantTurn()
    turn.add(pieces)
    calls = [(c.call_id, c.name, c.arguments, c.is_whole) for c in turn.calls]
    json.dumps(turn.message(), ensure_ascii=False).encode()
    return turn.content, turn.reasoning, calls, parser.finish_reason("stop")


@pytest.mark.parametrize("name", GOLDEN)
def test_golden(name):
    text, content, reasoning, calls, *num_whole = GOLDEN[name]
    whole = num_whole[0] if num_whole else len(calls)
    expected = [(f"call_{n}", *c, n < whole) for n, c in enumerate(calls)]
    is_done = bool(calls) and whole == len(calls)
    reason = "tool_calls" if is_done else "stop"
    assert _outcome(text) == (content, reasoning, expected, reason)


@pytest.mark.parametrize("name", GOLDEN)
def test_every_cut_gives_the_same(name):
    text = GOLDEN[name][0]
    whole = _outcome(text)
    for at in range(0, len(text) + 1, 1 + len(text) // 400):
        assert _outcome(text, [at]) == whole, at
    assert _outcome(text, range(1, len(text))) == whole


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_random_texts_cut_anywhere(data):
    parts = [
        *("<tool_call>", "</tool_call>", "<think>", "</think>", '{"name": "f"', ', "arguments": '),
        *('{"a": "', '"', "}", "}}", "\n", " ", "\\", "x", "[", "<", ", ", r"\ud83d"),
        *('{"name": "g", "arguments": {}}', '{"name": "g", "arguments": {}', ', "id": "x"'),
        *('"arguments": {"a": "', '"name": "f', " " * 1100),
    ]  # fmt: skip
    text = "".join(data.draw(st.lists(st.sampled_from(parts), max_size=14)))
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=12))
    assert _outcome(text, cuts) == _outcome(text) == _outcome(text, range(1, len(text)))


def test_arguments_are_streamed_unchanged():
    text = call('{"code": "print(1)"}')
    pieces, _ = _run(text, range(1, len(text)))
    start, *arguments, end = pieces
    assert start == ToolCallStart(0, "call_0", "f")
    assert [type(piece) for piece in arguments] == [ToolCallArguments] * len('{"code": "print(1)"}')
    assert end == ToolCallEnd(0)


def test_content_and_reasoning_are_not_held_back():
    pieces, _ = _run("<think>ab</think>cd", range(1, 19))
    assert pieces == [Reasoning("a"), Reasoning("b"), Content("c"), Content("d")]


@pytest.mark.parametrize(
    ("turn", "text", "content", "reasoning"),
    [
        ("assistant\n<think>\n", "hm\n</think>\n\nHi.", "Hi.", "hm"),
        ("assistant\n<think>\nhm, ", "so\n</think>Hi.", "Hi.", "so"),
        ("assistant\n<think>\n\n</think>\n\n", "Hi.", "Hi.", ""),
        ("assistant\n", "hm\n</think>\n\nHi.", "hm\n</think>\n\nHi.", ""),
    ],
)
def test_the_prompt_may_have_opened_the_reasoning(turn, text, content, reasoning):
    assert _outcome(text, turn=turn)[:2] == (content, reasoning)
    assert _outcome(text, range(1, len(text)), turn=turn)[:2] == (content, reasoning)


def test_one_call_at_a_time_keeps_the_first():
    text = f"Two:\n{ONE}\n{call('{}', 'g')}\nDone."
    content, _, calls, reason = _outcome(text, has_parallel_calls=False)
    assert (content, [c[1] for c in calls], reason) == ("Two:\nDone.", ["f"], "tool_calls")


def test_a_cut_off_call_keeps_the_reason():
    _, parser = _run(ONE)
    assert parser.finish_reason("stop") == "tool_calls"
    assert parser.finish_reason("length") == "length"
    _, parser = _run("Hello")
    assert parser.finish_reason("stop") == "stop"
    parser = OutputParser(ParseContext(), reasoning=None, tools=HermesParser(), is_call_named=True)
    parser.push(ONE)
    assert parser.finish_reason("stop") == "stop"


def test_call_ids_are_unique():
    factory = HermesParser()
    starts = [factory.start(ParseContext()).push(ONE)[0] for _ in range(2)]
    assert starts[0].call_id.startswith("call_")
    assert starts[0].call_id != starts[1].call_id


def test_without_a_tool_parser_text_is_left_as_it_is():
    parser = OutputParser(ParseContext(), reasoning=None, tools=None)
    assert parser.push(ONE) == [Content(ONE)]
    assert (parser.push(""), parser.finish()) == ([], [])


def test_a_turn_is_a_message():
    turn = AssistantTurn()
    assert turn.message() == {"role": "assistant", "content": ""}
    turn.add(_run(f"<think>hm</think>{ONE}")[0])
    assert turn.message() == {
        "role": "assistant",
        "content": None,
        "reasoning": "hm",
        "reasoning_content": "hm",
        "tool_calls": [
            {
                "id": "call_0",
                "type": "function",
                "function": {"name": "f", "arguments": '{"a": 1}'},
            }
        ],
    }


HOSTILE = {
    "arguments": lambda n: call(json.dumps({"a": "x = [1]\n" * (n // 9)})),
    "arguments first": lambda n: f'<tool_call>{{"arguments": {{"a": "{"x" * n}"}}, "name": "f"}}',
    "a name": lambda n: call("{}", "x" * n),
    "blank behind the mark": lambda n: "<tool_call>" + " " * n,
    "blank in broken arguments": lambda n: call('{"a": "\n' + " " * n + "x"),
    "braces in broken arguments": lambda n: call('{"a": "\n' + "} " * (n // 2) + "x"),
    "blank behind the arguments": lambda n: call("{}")[:-12] + " " * n + "x",
    "keys behind the arguments": lambda n: call('{}, "id": "' + "x" * n + '"'),
    "blank behind a comma": lambda n: call("{}," + " " * n + "x"),
    "blank": lambda n: "x" + "\n " * (n // 2) + "x",
    "blank in front": lambda n: "\n" * n + "x",
    "newlines in a thought": lambda n: "<think>x" + "\n" * n + "x</think>",
    "marks": lambda n: "<tool_call>" * (n // 11),
    "objects that are no calls": lambda n: "<tool_call>{}" * (n // 13),
    "heads in a string": lambda n: '<tool_call>{"a": "' + "<tool_call>" * (n // 11) + "\n",
    "calls": lambda n: f"{ONE}\n" * (n // len(ONE)),
    "broken calls": lambda n: '<tool_call>{"name": "f", "arguments": {}, "x" !' * (n // 50),
}


@pytest.mark.timed
@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("size", [4, 10**9], ids=["pieces", "whole"])
def test_time_is_linear_in_the_text(name, size):
    """Because of noise, eight times the text may take 24 times as long. Quadratic time would be 64
    times, cubic 512."""

    def seconds(num_chars):
        text = HOSTILE[name](num_chars)
        begun = time.process_time()
        _run(text, range(size, len(text), size))
        return time.process_time() - begun

    short = min(seconds(5_000) for _ in range(3))
    # The floor covers the clock's resolution and costs that do not depend on the text.
    assert min(seconds(40_000) for _ in range(2)) < max(24 * short, 0.02)
