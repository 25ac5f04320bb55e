"""Random model output: pieces do not depend on cuts, no held text is lost, and time is linear."""

import gc
import itertools
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openinfer_testing.parsers import GoldenStream, Parsers, parse_output
from openinfer_text import choose_parser

PROPERTIES = {"a": {"type": "string"}, "n": {"type": "integer"}, "o": {"type": ["string", "null"]}}
TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": PROPERTIES}},
}
JSON = ('{"a": "', '"', "}", '{"n": 1}', "{}", "\\", "\n", " ", "x", "1", "<", " " * 1100)
PARTS = {
    "qwen3_coder": (
        *("<tool_call>", "</tool_call>", "<function=f>", "<function=g>", "</function>"),
        *("<parameter=a>", "<parameter=n>", "<parameter=o>", "</parameter>", "<function="),
        *("\n", " ", "x", "<", "</", "null", "nul", "1", "True", '"', "<think>", "</think>"),
        " " * 1100,
    ),
    "kimi_k2": (
        *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>"),
        *("<|tool_call_end|>", "<|tool_call_argument_begin|>", "functions.f:0", "functionsf1"),
        *("call3", "<|tool", "<think>", "</think>", *JSON),
    ),
    "deepseek_v3": (
        *("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>function"),
        *("<｜tool▁call▁end｜>", "<｜tool▁sep｜>", "f", "```json", "```", "<｜tool", "<think>"),
        *JSON,
    ),
    "deepseek_v31": (
        *("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "f"),
        *("<｜tool▁call▁end｜>", "<｜tool▁sep｜>", "<｜tool", "</think>", *JSON),
    ),
}  # fmt: skip
REASONING = {"qwen3_coder": "qwen3", "kimi_k2": "kimi_k2"}


def parsers_of(name):
    return Parsers(
        tools=choose_parser("tool", name, None),
        reasoning=choose_parser("reasoning", REASONING.get(name, "deepseek_r1"), None),
    )


@pytest.mark.parametrize("name", PARTS)
@given(st.data())
@settings(max_examples=60, deadline=None)
def test_random_texts_cut_anywhere(name, data):
    text = "".join(data.draw(st.lists(st.sampled_from(PARTS[name]), max_size=16)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12)))
    stream = GoldenStream(text=text, tools=[TOOL])
    bounds = [0, *cuts, len(text)]
    parts = [text[start:end] for start, end in itertools.pairwise(bounds)]
    parsers = parsers_of(name)
    whole = parse_output(parsers, stream, [text])
    assert parse_output(parsers, stream, parts) == whole == parse_output(parsers, stream, text)
    if not whole.calls and "<think>" not in text and "</think>" not in text:
        assert whole.content == text


K = "<|tool_call_begin|>{}<|tool_call_argument_begin|>"
D = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>"
X = "<tool_call>\n<function=f>\n<parameter=a>\n"
HOSTILE = {
    "kimi_k2": {
        "arguments": lambda n: K.format("functions.f:0") + '{"a": "' + "x" * n + '"}',
        "broken arguments": lambda n: K.format("functions.f:0") + "x" * n,
        "labels": lambda n: K.format("call3") + "x" * n,
        "no names": lambda n: (K.format("3") + '{"a": "') * (n // 50),
        "names that are none": lambda n: (K.format("3") + '{"z": 1} ') * (n // 50),
        "sections": lambda n: "<|tool_calls_section_begin|>" * (n // 28),
        "blank in a section": lambda n: "<|tool_calls_section_begin|>" + " " * n + "x",
        "blank behind a call": lambda n: K.format("functions.f:0") + "{}" + " " * n + "x",
        "calls": lambda n: (K.format("functions.f:0") + "{}<|tool_call_end|>") * (n // 70),
    },
    "deepseek_v31": {
        "arguments": lambda n: D + '{"a": "' + "x" * n + '"}',
        "blank before": lambda n: D + " " * n + "{}",
        "newlines in a thought": lambda n: "<think>x" + "\n" * n + "x</think>",
    },
    "qwen3_coder": {
        "text": lambda n: X + "x" * n,
        "closers": lambda n: X + "</parameter>" * (n // 12),
        "closers far from others": lambda n: X + ("</parameter>" + " " * 900 + "x") * (n // 913),
        "line breaks": lambda n: X + "\n" * n,
        "openings": lambda n: X + "<" * n,
        "held": lambda n: X.replace("=a", "=n") + "1" * n + "\n</parameter>",
        "held closers": lambda n: X.replace("=a", "=n") + "</function> x" * (n // 13),
        "marks": lambda n: "<tool_call>" * (n // 11),
        "bare functions": lambda n: "<function=" * (n // 10),
        "names": lambda n: "<tool_call><function=" + "x" * n,
        "parameters": lambda n: X[:-15] + "<parameter=a>\nx\n</parameter>\n" * (n // 30),
        "calls": lambda n: (X + "x</parameter></function></tool_call>") * (n // 80),
    },
}
CASES = [(name, case) for name, cases in HOSTILE.items() for case in cases]


@pytest.mark.timed
@pytest.mark.parametrize(("name", "case"), CASES, ids=[" ".join(case) for case in CASES])
@pytest.mark.parametrize("size", [4, 10**9], ids=["pieces", "whole"])
def test_time_is_linear_in_the_text(name, case, size):
    """Because of noise, eight times the text may take 24 times as long. Quadratic time would be 64
    times, cubic 512."""
    parsers = parsers_of(name)

    def seconds(num_chars):
        text = HOSTILE[name][case](num_chars)
        stream = GoldenStream(text=text, tools=[TOOL])
        deltas = [text[at : at + size] for at in range(0, len(text), size)]
        # A garbage collection takes time for the objects of all earlier tests, and longer texts
        # cause more collections.
        gc.disable()
        try:
            begun = time.process_time()
            parse_output(parsers, stream, deltas)
            return time.process_time() - begun
        finally:
            gc.enable()

    short = min(seconds(5_000) for _ in range(3))
    # The floor covers the clock's resolution and costs that do not depend on the text.
    assert min(seconds(40_000) for _ in range(2)) < max(24 * short, 0.02)
