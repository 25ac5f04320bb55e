"""Templates that come with requests, and the limits that every template has."""

import resource

import pytest

from openinfer_contract import unpack_ids
from openinfer_text import (
    ChatTemplate,
    InvalidChatInput,
    NoChatTemplate,
    TemplateError,
    TextModel,
    Tokenizer,
)
from openinfer_text.templates import _limits
from openinfer_text.templates._request_templates import RequestTemplates

SPECIALS = {"bos_token": "<s>"}
SOURCE = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
    "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{{ mood }}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
CHAT = [{"role": "user", "content": "Grüß dich \ud83d 😀"}, {"role": "assistant", "content": "So"}]


@pytest.fixture
def requested():
    return RequestTemplates(SPECIALS)


@pytest.mark.parametrize(
    "options",
    [
        {"add_generation_prompt": True, "chat_template_kwargs": {"mood": "glad"}},
        {"tools": [{"type": "function", "function": {"name": "weather"}}]},
        {"continue_final_message": True},
    ],
)
def test_a_request_template_renders_like_the_checkpoints_own(requested, options):
    wanted = ChatTemplate(SOURCE, special_tokens=SPECIALS).render(CHAT, **options)
    assert [requested.render(SOURCE, CHAT, **options) for _ in range(2)] == [wanted] * 2


def test_the_number_of_cached_templates_is_limited(requested):
    texts = [requested.render(f"{n}", CHAT) for n in range(40)]
    assert texts == [str(n) for n in range(40)]
    assert requested.render("3", CHAT) == "3"
    assert len(requested._templates) == 16


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("\n{{ 1/0 }}", "line 2: ZeroDivisionError"),
        ("a\nb\n{% if %}", "line 3: Expected an expression"),
        ("\n\n{{ raise_exception('roles must alternate') }}", "line 3: roles must alternate"),
        ("{{ messages[0].nothing.at_all }}", "line 1: 'dict object' has no attribute"),
        ("{{ " + "(" * 9000 + "1" + ")" * 9000 + " }}", "nested too deeply"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "line 1: RecursionError"),
        ("{{ messages.append(1) }}", "line 1: "),
    ],
)
def test_the_error_of_a_template_names_the_line(requested, source, words):
    with pytest.raises(TemplateError) as caught:
        requested.render(source, CHAT)
    assert words in caught.value.message
    assert requested.render("{{ 1 }}", CHAT) == "1"


DOUBLED = "{% set n = namespace(x='xxxxxxxx') %}{% for i in range(64) %}SET{% endfor %}"
PAIRS = "{% for i in range(99999) %}{% for j in range(99999) %}BODY{% endfor %}{% endfor %}"
TOO_LONG = {
    "nested loops": PAIRS.replace("BODY", ""),
    "a loop's condition": (
        "{% for i in range(99999) if range(999) | select('odd') | list == 1 %}{% endfor %}"
    ),
    "macros": (
        "{% macro f(n) %}{% if n %}{{ f(n - 1) ~ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}"
    ),
    "output of a macro": (
        "{% macro f() %}" + PAIRS.replace("BODY", "x" * 1000) + "{% endmacro %}{{ f() }}"
    ),
}  # fmt: skip
TOO_LARGE = {
    "output": PAIRS.replace("BODY", "x" * 1000),
    "a power": "{{ 10 ** (10 ** 8) }}",
    "squares": DOUBLED.replace("SET", "{% set n.x = n.x * n.x %}").replace("'xxxxxxxx'", "3"),
    "a text repeated": "{{ 'x' * 10 ** 10 }}",
    "a list repeated": "{{ ([1] * 10 ** 10) | length }}",
    "texts in a list": "{{ (['x' * 10 ** 6] * 10 ** 5) | map('upper') | list | length }}",
    "~": DOUBLED.replace("SET", "{% set n.x = n.x ~ n.x %}"),
    "+": DOUBLED.replace("SET", "{% set n.x = n.x + n.x %}"),
    "+ of lists": DOUBLED.replace("SET", "{% set n.x = n.x + n.x %}").replace("'xxxxxxxx'", "[1]"),
    "a block": DOUBLED.replace("SET", "{% set y %}{{ n.x }}{{ n.x }}{% endset %}{% set n.x = y %}"),
    "a method's width": "{{ 'x'.center(10 ** 10) }}",
    "a filter's width": "{{ 'x' | center(width=10 ** 10) }}",
    "a width in a format": "{{ '%10000000000d' % 1 }}",
    "a width beside a format": "{{ '%*d' % (10 ** 10, 1) }}",
    "a width of str.format": "{{ '{:>10000000000}'.format(1) }}",
    "a width within str.format": "{{ '{:>{}}'.format(1, 10 ** 10) }}",
    "a replacement": "{{ ('x' * 10 ** 6).replace('x', 'y' * 10 ** 6) }}",
    "a replacing filter": "{{ ('x' * 10 ** 6) | replace('x', 'y' * 10 ** 6) }}",
    "an indent of JSON": "{{ [1] | tojson(indent=10 ** 9) }}",
    "an indent of JSON as text": "{{ [1] | tojson(indent='x' * 10 ** 7) }}",
    "a separator of JSON": "{{ range(1000) | list | tojson(separators=('y' * 10 ** 6, ':')) }}",
    "a join": "{{ (['x' * 1000] * 1000) | join('y' * 10 ** 6) }}",
    "a join's method": "{{ ('y' * 10 ** 6).join(['x'] * 10 ** 4) }}",
}  # fmt: skip


@pytest.mark.parametrize("form", TOO_LONG)
def test_a_template_without_an_end_is_ended(form, requested, monkeypatch):
    monkeypatch.setattr(_limits, "MAX_SECONDS", 0.05)
    with pytest.raises(TemplateError, match=r"more than 0\.05 s"):
        requested.render(TOO_LONG[form], CHAT)
    assert requested.render("{{ 1 }}", CHAT) == "1"


@pytest.mark.parametrize("form", TOO_LARGE)
def test_a_template_that_takes_too_much_memory_is_refused(form, requested):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(TemplateError, match=r"too l(ong|arge)"):
        requested.render(TOO_LARGE[form], CHAT)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400 << 10


def test_a_checkpoint_with_a_hostile_template_does_not_hang_the_start(checkpoints, monkeypatch):
    monkeypatch.setattr(_limits, "MAX_SECONDS", 0.1)
    tokenizer = Tokenizer.from_folder(checkpoints["qwen"])
    model = TextModel(tokenizer, chat_template=ChatTemplate(TOO_LONG["nested loops"]))
    assert not model.chat_template.takes_late_system
    with pytest.raises(TemplateError):
        model.encode_chat(CHAT[1:])
    model.close()


def test_templates_within_the_limits_are_rendered(requested):
    source = "{{ 'x' * 9 }}{{ 2 ** 9 }}{{ '%5d' % 7 }}{{ [1] + [2] }}{{ 'ab'.replace('a', 'cc') }}"
    assert requested.render(source, CHAT) == "xxxxxxxxx512    7[1, 2]ccb"


def test_wrong_messages_are_named(requested):
    with pytest.raises(InvalidChatInput, match="messages") as caught:
        requested.render(SOURCE, [{"role": "user", "content": [{"type": "image"}]}])
    assert caught.value.field == "messages[0].content[0].type"
    with pytest.raises(InvalidChatInput, match="tools"):
        requested.render("{{ messages }}", CHAT, tools=[{"type": "function"}])
    with pytest.raises(InvalidChatInput, match=r"chat_template_kwargs\.chat_template"):
        requested.render(SOURCE, CHAT, chat_template_kwargs={"chat_template": "{{ 1 }}"})


def test_a_model_without_a_template_takes_a_foreign_one(checkpoints):
    model = TextModel(Tokenizer.from_folder(checkpoints["qwen"]))
    with pytest.raises(NoChatTemplate):
        model.encode_chat(CHAT[1:])
    prompt = model.encode_chat(CHAT[1:], chat_template="{{ messages[0].content }}")
    assert (prompt.text, model.decode(unpack_ids(prompt.token_ids))) == ("So", "So")
    model.close()
