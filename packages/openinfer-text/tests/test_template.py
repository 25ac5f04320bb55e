import time

import pytest

from openinfer_text import ChatTemplate, InvalidChatInput, TemplateError

SPECIALS = {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "It's <b>weather</b> & more — für dich",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "weather", "arguments": {"city": "Köln"}},
}
USER = {"role": "user", "content": "  What's the weather <in> Köln & Bonn?\n"}
CHATS = {
    "one": [USER],
    "system": [{"role": "system", "content": "Be brief."}, USER],
    "turns": [
        USER,
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nSunny. "},
        {"role": "user", "content": "And tomorrow?"},
    ],
    "reasoning": [
        USER,
        {"role": "assistant", "content": "Sunny.", "reasoning": "\nthink {{ not code }}\n"},
    ],
    "tools": [
        {"role": "system", "content": "Use tools."},
        USER,
        {"role": "assistant", "content": "", "tool_calls": [CALL, CALL]},
        {"role": "tool", "content": '{"t": 21}', "tool_call_id": "c1"},
        {"role": "tool", "content": "cold", "tool_call_id": "c1"},
        {"role": "assistant", "content": "21 degrees"},
        {"role": "user", "content": "thanks"},
    ],
}
OPTIONS = [
    {},
    {"add_generation_prompt": True},
    {"tools": [TOOL, TOOL]},
    {"tools": []},
    {"documents": [{"title": "A", "text": "b"}], "add_generation_prompt": True},
    {"chat_template_kwargs": {"enable_thinking": False, "date": "2 Feb", "bos_token": "<b>"},
     "add_generation_prompt": True},
    {"chat_template_kwargs": {"pin": 1}},
]  # fmt: skip


def _outcome(render):
    """Returns the text, or a mark of an error; both sides must agree."""
    try:
        return render()
    except Exception as error:
        return type(error)


@pytest.mark.parametrize("name", ["chatml", "headers", "parts", "either"])
@pytest.mark.parametrize("chat", CHATS)
def test_equals_transformers_byte_for_byte(name, chat, templates, hf_render):
    source = templates[name]
    template = ChatTemplate(source, special_tokens=SPECIALS)
    rendered = 0
    for options in OPTIONS:
        theirs = dict(options)
        theirs |= theirs.pop("chat_template_kwargs", {})
        messages = CHATS[chat] if name != "parts" else template.normalize(CHATS[chat])
        expected = _outcome(lambda m=messages, t=theirs: hf_render(source, m, **t))
        ours = _outcome(lambda o=options: template.render(CHATS[chat], **o))
        if isinstance(expected, str):
            rendered += 1
            assert ours == expected
        else:
            assert ours is TemplateError
    assert rendered


@pytest.mark.parametrize("name", ["chatml", "headers", "parts", "either"])
@pytest.mark.parametrize("text", ["The sky is", "The sky is  ", " a\n"])
def test_continuing_equals_transformers(name, text, templates, hf_render):
    template = ChatTemplate(templates[name], special_tokens=SPECIALS)
    chat = [USER, {"role": "assistant", "content": text}]
    normal = template.normalize(chat)
    expected = hf_render(templates[name], normal, continue_final_message=True)
    assert template.render(chat, continue_final_message=True) == expected
    assert expected.endswith((text, text.strip()))


def test_the_content_format_is_detected_from_the_template(templates):
    formats = {name: ChatTemplate(source).content_format for name, source in templates.items()}
    assert {name for name, form in formats.items() if form == "openai"} == {
        "parts",
        "either",
        "turns",
    }
    assert ChatTemplate(templates["either"], content_format="string").content_format == "string"


def test_parts_become_the_form_that_the_template_reads(templates):
    parts = [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}, "c"]
    chat = [{"role": "user", "content": parts}]
    assert "user\na\nb\nc<|im_end|>" in ChatTemplate(templates["chatml"]).render(chat)
    assert "USER: a / b / c<|im_end|>" in ChatTemplate(templates["parts"]).render(chat)
    assert ChatTemplate(templates["either"]).render(chat) == "[user] abc</s>a=1"
    assert ChatTemplate(templates["either"]).render([{"role": "user", "content": "x"}]) == (
        "[user] x</s>a=1"
    )


def test_arguments_become_objects(templates):
    def shown(arguments):
        call = {"function": {"name": "f", "arguments": arguments}}
        chat = [USER, {"role": "assistant", "content": None, "tool_calls": [call]}]
        text = ChatTemplate(templates["chatml"]).render(chat)
        return text.split('"arguments": ')[1].split("}\n</tool_call>")[0]

    assert shown('{"a":1}') == '{"a": 1}'
    assert shown({"a": 1}) == '{"a": 1}'
    assert shown("") == "{}"
    assert shown(None) == "{}"
    for arguments in ('{"a": broken', '"text"', "[1]", "[" * 100_000):
        assert shown(arguments) == arguments, "as the model wrote it"
    for arguments in (3, [1]):
        with pytest.raises(InvalidChatInput, match="must be a JSON object") as caught:
            shown(arguments)
        assert caught.value.field == "messages[1].tool_calls[0].function.arguments"


def test_arguments_that_a_template_cannot_write_are_named(templates):
    calls = [CALL, {"function": {"name": "f", "arguments": '{"a": "cut o'}}]
    chat = [USER, {"role": "assistant", "content": None, "tool_calls": calls}]
    for name in ("chatml", "deepseek", "kimi"):
        assert "cut o" in ChatTemplate(templates[name]).render(chat)
    with pytest.raises(InvalidChatInput, match="JSON object") as caught:
        ChatTemplate(templates["coder"]).render(chat)
    assert caught.value.field == "messages[1].tool_calls[1].function.arguments"
    refusing = ChatTemplate("{{ raise_exception('never') }}")
    with pytest.raises(TemplateError, match="never"):
        refusing.render(chat)


def test_only_an_assistant_may_have_null_content(templates):
    template = ChatTemplate(templates["chatml"])
    for message in ({"content": None}, {}, {"content": None, "tool_calls": [CALL]}):
        template.render([USER, {"role": "assistant", **message}])
    for role in ("user", "system", "developer", "tool"):
        with pytest.raises(InvalidChatInput, match="must not be null") as caught:
            template.render([USER, {"role": role, "content": None}])
        assert caught.value.field == "messages[1].content"
        with pytest.raises(InvalidChatInput, match="is missing"):
            template.render([USER, {"role": role}])


@pytest.mark.parametrize(
    ("calls", "field"),
    [
        ("f", "messages[0].tool_calls"),
        ([1], "messages[0].tool_calls[0].function"),
        ([CALL, {"function": {"arguments": "{}"}}], "messages[0].tool_calls[1].function.name"),
    ],
)
def test_tool_calls_of_another_shape_are_named(templates, calls, field):
    with pytest.raises(InvalidChatInput) as caught:
        ChatTemplate(templates["chatml"]).render([{"role": "assistant", "tool_calls": calls}])
    assert caught.value.field == field


def test_whether_a_template_takes_tools(templates):
    assert ChatTemplate(templates["chatml"]).takes_tools
    assert not ChatTemplate(templates["parts"]).takes_tools
    both = ChatTemplate({"default": templates["parts"], "tool_use": templates["chatml"]})
    assert both.takes_tools
    assert both.tools_source == templates["chatml"]


def test_the_input_is_not_changed(templates):
    chat = [{"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning": "r"}]
    before = repr(chat)
    ChatTemplate(templates["chatml"]).render([USER, *chat])
    assert repr(chat) == before


def test_function_becomes_tool_if_the_template_knows_tool(templates):
    source = templates["chatml"]
    answers = [USER | {"role": role, "content": "42"} for role in ("function", "tool")]
    first, second = (ChatTemplate(source).render([USER, answer]) for answer in answers)
    assert first == second
    assert "42" in first


def test_an_older_function_call_is_refused(templates):
    call = {"name": "f", "arguments": "{}"}
    message = {"role": "assistant", "content": None, "function_call": call}
    with pytest.raises(InvalidChatInput, match=r"messages\[1\].function_call: .* tool_calls"):
        ChatTemplate(templates["chatml"]).render([USER, message])
    ChatTemplate(templates["chatml"]).render([USER, message | {"function_call": None}])


def test_developer_is_system_unless_the_template_knows_it(templates):
    chat = [{"role": "developer", "content": "d"}, USER]
    assert ChatTemplate(templates["chatml"]).render(chat).startswith("<|im_start|>system\nd")
    assert ChatTemplate(templates["either"]).render(chat).startswith("[developer] d!")


def test_named_templates():
    template = ChatTemplate({"default": "plain", "tool_use": "with tools"})
    assert template.render([USER]) == "plain"
    assert template.render([USER], tools=[TOOL]) == "with tools"
    with pytest.raises(TemplateError, match="there are: other"):
        ChatTemplate({"other": "x"})


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('no such role') }}", "no such role"),
        ("{{ messages[0].content + 1 }}", "TypeError"),
        ("{{ missing.attribute }}", "missing"),
        ("{% for i in range(10**9) %}{% endfor %}", "Range too big"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{% set ns = namespace() %}{% set ns._x = 1 %}", "namespace"),
        ("{{ 1 // 0 }}", "ZeroDivisionError"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
    ],
)
def test_failures_of_a_template_are_template_errors(source, message):
    started = time.monotonic()
    with pytest.raises(TemplateError) as caught:
        ChatTemplate(source).render([USER])
    assert message in caught.value.message
    assert time.monotonic() - started < 5


def test_broken_template_is_refused_at_once():
    with pytest.raises(TemplateError, match="line 2"):
        ChatTemplate("fine\n{% if %}")


IMAGE = {"type": "image_url", "image_url": {"url": "x"}}


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ([], "messages"),
        (["x"], "messages[0].role"),
        ([{"content": "x"}], "messages[0].role"),
        ([USER, {"role": "user", "content": 3}], "messages[1].content"),
        ([{"role": "user", "content": [IMAGE]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": [{"type": ["text"]}]}], "messages[0].content[0].type"),
        ([{"role": "assistant", "tool_calls": "x"}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": [{}]}], "messages[0].tool_calls[0].function"),
    ],
)
def test_unusable_messages_are_named(templates, messages, field):
    for name in templates:
        with pytest.raises(InvalidChatInput) as caught:
            ChatTemplate(templates[name]).render(messages)
        assert caught.value.field == field


def test_unusable_options_are_named(templates):
    template = ChatTemplate(templates["chatml"])
    with pytest.raises(InvalidChatInput, match=r"chat_template_kwargs\.messages"):
        template.render([USER], chat_template_kwargs={"messages": []})
    with pytest.raises(InvalidChatInput, match="needs add_generation_prompt to be false"):
        template.render([USER], continue_final_message=True, add_generation_prompt=True)
    with pytest.raises(InvalidChatInput, match="no text to continue"):
        template.render([{"role": "assistant", "content": ""}], continue_final_message=True)
    with pytest.raises(TemplateError, match="does not show"):
        ChatTemplate("{{ messages[0].content[:2] }}").render([USER], continue_final_message=True)


def test_every_reasoning_name_is_readable_under_each(templates):
    names = ("reasoning_content", "thinking", "reasoning")
    texts = set()
    for name in names:
        chat = [USER, {"role": "assistant", "content": "x", name: "because"}]
        texts.add(ChatTemplate(templates["chatml"]).render(chat))
    assert len(texts) == 1
    assert "because" in texts.pop()
