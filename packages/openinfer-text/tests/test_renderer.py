"""Templates rendered three ways: minijinja, Jinja's sandbox, transformers."""

import logging
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openinfer_text import ChatTemplate, TemplateError
from openinfer_text.templates._jinja import run, sandbox
from openinfer_text.templates._minijinja import FastTemplate, plan_fast

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
    """Text, or that there was an error: all ways must agree on which."""
    try:
        return render()
    except Exception:
        return None


def _variables(messages, options):
    defaults = {"tools": None, "documents": None, "add_generation_prompt": False}
    return {**SPECIALS, **defaults, **options, "messages": messages}


@pytest.mark.parametrize("name", NAMES)
def test_three_ways_are_one(name, templates, hf_render):
    source = templates[name]
    parsed = sandbox().parse(source)
    reference = sandbox().from_string(source)
    fast = plan_fast(source, parsed)
    assert isinstance(fast, FastTemplate), fast
    template = ChatTemplate(source, special_tokens=SPECIALS)
    num_rendered = 0
    for chat, messages in CHATS.items():
        messages = template.normalize(messages)
        for options in OPTIONS:
            theirs = _outcome(lambda m=messages, o=options: hf_render(source, m, **o))
            variables = _variables(messages, options)
            assert _outcome(lambda v=variables: run(reference, v)) == theirs, (chat, options)
            assert _outcome(lambda v=variables: fast.render(v)) == theirs, (chat, options)
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


CHARS = "aB 12\n\t\x1c\x1f\x85\xa0\u2003\u2028\ufffdé\u0130ß中😀<>{}%\"\\'&\ud83d"
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
def pairs(templates):
    """Every template as it is served, kept over all examples, and the definition."""
    environment = sandbox()
    return {
        name: (ChatTemplate(source, special_tokens=SPECIALS), environment.from_string(source))
        for name, source in templates.items()
    }


@pytest.mark.long
@given(st.data())
@settings(max_examples=150, deadline=None)
def test_random_chats_are_rendered_as_the_sandbox_does(pairs, data):
    messages = data.draw(st.lists(MESSAGES, min_size=1, max_size=5))
    options = data.draw(st.sampled_from(OPTIONS))
    for name, (template, reference) in pairs.items():
        variables = _variables(template.normalize(messages), options)
        # Twice: the second time by what the first has found out.
        for _ in range(2):
            served = _outcome(lambda t=template: _render(t, messages, options))
            assert served == _outcome(lambda r=reference, v=variables: run(r, v)), name


def _served(template, options=None, **message):
    return _render(template, [{"role": "user", "content": "x"} | message], options or {})


def test_what_was_compared_is_served_by_minijinja(templates, monkeypatch):
    template = ChatTemplate(templates["chatml"], special_tokens=SPECIALS)
    texts = [template.render(messages) for messages in CHATS.values()]
    monkeypatch.setattr("openinfer_text.templates._renderer.run", None)
    assert [template.render(messages) for messages in CHATS.values()] == texts
    longer = [*CHATS["turns"], *CHATS["turns"][1:]]
    with pytest.raises(TypeError, match="NoneType"):
        _served(template, content="a new <tool_response> shape")
    assert template.render([{**longer[0], "content": " other\n"}]).count("other") == 1


@pytest.mark.parametrize(
    ("source", "text"),
    [("{{ 1e20 }}", "1e+20"), ("{{ none is iterable or x is iterable }}", "True")],
)
def test_a_difference_is_logged_once_and_jinja_serves(source, text, caplog):
    template = ChatTemplate(source)
    for content in ("x", "x", " y "):
        assert _served(template, content=content) == text
    (record,) = caplog.records
    assert "minijinja does not render some requests as jinja2 does" in record.getMessage()


def test_a_shape_that_differs_leaves_the_others_alone(caplog, monkeypatch):
    template = ChatTemplate("{{ messages[0].size }}")
    assert _served(template, size=0.5) == "0.5"
    assert _served(template, size=1e300) == _served(template, size=2e300).replace("2", "1")
    assert len(caplog.records) == 1
    monkeypatch.setattr("openinfer_text.templates._renderer.run", None)
    assert _served(template, size=1.5) == "1.5"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ 'a b'.title() }}", "the method 'title'"),
        ("{{ messages.append(1) }}", "the method 'append'"),
        ("{{ messages | groupby('role') | list }}", "the filter 'groupby'"),
        ("{{ (messages | list)[0]['f']() }}", "calls what it computes"),
        ("{% include 'x' %}", "the statement 'include'"),
        ("{{ debug() }}", "the name 'debug'"),
        ("{{ messages._x }}", "the attribute '_x'"),
        ("{{ '%s' % 'a' }}{% trans %}", None),
    ],
)
def test_what_minijinja_may_not_render_is_named(source, reason, caplog):
    if reason is None:
        with pytest.raises(TemplateError):
            ChatTemplate(source)
        return
    with caplog.at_level(logging.INFO):
        template = ChatTemplate(source)
    assert reason in template.slow_reasons["default"]
    assert "is rendered by jinja2: it" in caplog.text


def test_white_space_of_python_alone_is_stripped(caplog):
    template = ChatTemplate("{{ messages[0].content.strip() }}|")
    assert _served(template, content="a") == "a|"
    assert _served(template, content="a\x1c") == "a|"
    assert caplog.records == [], "it is known, so it is no difference"


def test_half_a_surrogate_pair_stays_what_it_is():
    template = ChatTemplate("{{ messages[0].content }}")
    assert _served(template, content="ab") == "ab"
    assert _served(template, content="a\ud83d") == "a\ud83d"


def test_the_clock_stands_still_while_renderings_are_compared(caplog, monkeypatch):
    template = ChatTemplate("{{ strftime_now('%f') }}{{ messages[0].content }}")
    assert len(_served(template, content="x")) == 7
    assert caplog.records == []
    monkeypatch.setattr("openinfer_text.templates._renderer.run", None)
    assert _served(template, content="y") != _served(template, content="z")


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
