"""Templates rendered by this package's sandbox and by transformers."""

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openinfer_text import ChatTemplate
from openinfer_text.templates._sandbox import TemplateSandbox, compile_template, render

SPECIALS = {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "It's <b>weather</b> & more\nfür dich",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "enum": ["Köln", "Bonn"], "description": " where "},
                "days": {"type": ["integer", "null"], "default": None, "minimum": 1.5},
                "items": {"type": "array", "items": {"type": "string"}, "nullable": True},
                "deep": {
                    "type": "object",
                    "properties": {"a": {"oneOf": [{"type": "boolean", "default": True}]}},
                    "required": ["a"],
                },
            },
            "required": ["city"],
        },
    },
}
CALL = {
    "id": "call00001",
    "type": "function",
    "function": {
        "name": "weather",
        "arguments": {
            "city": 'Kö"ln\n',
            "days": 3,
            "flag": True,
            "none": None,
            "x": [1, {"a": 2.5}],
        },
    },
}
USER = {"role": "user", "content": "  What's the weather <in> Köln & Bonn?\n"}
SYSTEM = {"role": "system", "content": "Be brief. "}
CHATS = {
    "one": [USER],
    "system": [SYSTEM, USER],
    "two systems": [SYSTEM, USER, {"role": "assistant", "content": "ok"}, SYSTEM, USER],
    "turns": [
        USER,
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nSunny. "},
        {"role": "user", "content": "And tomorrow?\x0b"},
    ],
    "answered": [USER, {"role": "assistant", "content": " Sunny.", "reasoning_content": "\nhm\n"}],
    "empty": [USER, {"role": "assistant", "content": ""}, USER],
    "wrong order": [USER, USER, {"role": "assistant", "content": "</think>x"}],
    "tools": [
        SYSTEM,
        USER,
        {"role": "assistant", "content": "", "tool_calls": [CALL, {**CALL, "id": "c2"}]},
        {"role": "tool", "content": '{"t": 21}', "tool_call_id": "call00001"},
        {"role": "tool", "content": "cold </think> ", "tool_call_id": "c2"},
        {"role": "assistant", "content": "21", "thinking": "warm", "reasoning_content": "w"},
        {"role": "user", "content": "thanks"},
    ],
    "a call at the end": [
        USER,
        {"role": "assistant", "content": " I look.\n", "tool_calls": [CALL], "reasoning": "r"},
        {"role": "tool", "content": "x", "tool_call_id": "call00001"},
    ],
    "named": [{**USER, "name": "Ada"}],
}  # fmt: skip
OPTIONS = [
    {},
    {"add_generation_prompt": True},
    {"tools": [TOOL, TOOL], "add_generation_prompt": True},
    {"tools": [{"type": "function", "function": {"name": "f", "description": ""}}]},
    {"tools": []},
    {"documents": [{"title": "A", "text": "b"}], "add_generation_prompt": True},
    {"enable_thinking": False, "thinking": True, "reasoning_effort": "high", "date": "2 Feb",
     "add_generation_prompt": True},
    {"bos_token": "<b>", "pin": 1},
]  # fmt: skip
NAMES = [
    "channels", "chatml", "coder", "corners", "deepseek", "either", "headers", "inst", "kimi",
    "parts", "turns",
]  # fmt: skip


def _outcome(render):
    """Returns the text, or a mark of an error; all renderers must agree."""
    try:
        return render()
    except Exception:
        return None


def _variables(messages, options):
    defaults = {"tools": None, "documents": None, "add_generation_prompt": False}
    return {**SPECIALS, **defaults, **options, "messages": messages}


@pytest.mark.parametrize("name", NAMES)
def test_templates_are_rendered_as_transformers_does(name, templates, hf_render):
    source = templates[name]
    compiled = compile_template(TemplateSandbox(), source)
    template = ChatTemplate(source, special_tokens=SPECIALS)
    num_rendered = 0
    for chat, messages in CHATS.items():
        messages = template.normalize(messages)
        for options in OPTIONS:
            theirs = _outcome(lambda m=messages, o=options: hf_render(source, m, **o))
            variables = _variables(messages, options)
            assert _outcome(lambda v=variables: render(compiled, v)) == theirs, (chat, options)
            num_rendered += theirs is not None
    assert num_rendered >= len(OPTIONS)


def test_every_template_here_is_tried(templates):
    assert set(NAMES) == set(templates)


def _render(template, messages, options):
    options = dict(options)
    own = {
        key: options.pop(key)
        for key in ("tools", "documents", "add_generation_prompt")
        if key in options
    }
    return template.render(messages, **own, chat_template_kwargs=options)


CHARS = "aB 12\n\t\x1c\x1f\x85\xa0\u2003\u2028\ufffdé\u0130ß中😀<>{}%\"\\'&"
WORDS = ["</think>", "<think>\n", "</tool_call>", "<tool_response>", "system"]
TEXTS = st.lists(st.sampled_from([*CHARS, *WORDS]), max_size=10).map("".join)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=5,
)
CALLS = st.builds(
    lambda name, arguments: {"id": "x", "function": {"name": name, "arguments": arguments}},
    TEXTS,
    st.dictionaries(TEXTS, VALUES, max_size=3),
)
MESSAGES = st.one_of(
    st.builds(lambda c: {"role": "system", "content": c}, TEXTS),
    st.builds(lambda c: {"role": "user", "content": c}, TEXTS),
    st.builds(lambda c: {"role": "tool", "content": c, "tool_call_id": "x"}, TEXTS),
    st.builds(
        lambda c, r: {"role": "assistant", "content": c, "reasoning": r}, TEXTS, st.none() | TEXTS
    ),
    st.builds(
        lambda c, t: {"role": "assistant", "content": c, "tool_calls": t},
        st.none() | TEXTS,
        st.lists(CALLS, max_size=2),
    ),
)


@pytest.fixture(scope="module")
def served(templates):
    """Every template as served; compiled once for all examples."""
    return {
        name: ChatTemplate(source, special_tokens=SPECIALS) for name, source in templates.items()
    }


@pytest.mark.long
@given(st.data())
@settings(max_examples=150, deadline=None)
def test_random_chats_are_rendered_as_transformers_does(served, templates, hf_render, data):
    messages = data.draw(st.lists(MESSAGES, min_size=1, max_size=5))
    options = data.draw(st.sampled_from(OPTIONS))
    for name, template in served.items():
        normal = template.normalize(messages)
        theirs = _outcome(lambda n=name, m=normal: hf_render(templates[n], m, **options))
        assert _outcome(lambda t=template: _render(t, messages, options)) == theirs, name


def test_half_a_surrogate_pair_stays_escaped():
    template = ChatTemplate("{{ messages[0].content }}")
    assert template.render([{"role": "user", "content": "a\ud83d"}]) == "a\ud83d"


def test_threads_share_a_template(templates):
    template = ChatTemplate(templates["coder"], special_tokens=SPECIALS)
    wanted = {name: template.render(messages) for name, messages in CHATS.items()}
    fresh, wrong = ChatTemplate(templates["coder"], special_tokens=SPECIALS), []

    def work():
        for _ in range(5):
            wrong.extend(n for n, chat in CHATS.items() if fresh.render(chat) != wanted[n])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
