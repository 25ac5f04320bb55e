import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from openinfer_contract import unpack_ids
from openinfer_text import (
    ChatTemplate,
    InvalidChatInput,
    NoChatTemplate,
    TemplateError,
    TemplateProcessLost,
    TextModel,
    Tokenizer,
)
from openinfer_text.templates import _template_process
from openinfer_text.templates._template_process import TemplateProcess

SPECIALS = {"bos_token": "<s>"}
SOURCE = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
    "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{{ mood }}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
CHAT = [{"role": "user", "content": "Grüß dich \ud83d 😀"}, {"role": "assistant", "content": "So"}]


@pytest.fixture
def process():
    process = TemplateProcess(SPECIALS)
    yield process
    process.close()


@pytest.mark.parametrize(
    "options",
    [
        {"add_generation_prompt": True, "chat_template_kwargs": {"mood": "glad"}},
        {"tools": [{"type": "function", "function": {"name": "weather"}}]},
        {"continue_final_message": True},
    ],
)
def test_it_renders_what_the_template_renders(process, options):
    wanted = ChatTemplate(SOURCE, special_tokens=SPECIALS).render(CHAT, **options)
    assert [process.render(SOURCE, CHAT, **options) for _ in range(2)] == [wanted] * 2


def test_many_templates_are_rendered_by_one_process(process):
    texts = [process.render(f"{n}", CHAT) for n in range(40)]
    child = process._process
    assert texts == [str(n) for n in range(40)]
    assert process.render("3", CHAT) == "3"
    assert process._process is child


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
        ("{% for i in range(999) %}{{ 'x' * 99999 }}{% endfor %}", "more than 4194304"),
    ],
)
def test_a_template_that_fails_says_where(process, source, words):
    with pytest.raises(TemplateError) as caught:
        process.render(source, CHAT)
    assert words in caught.value.message
    assert process.render("{{ 1 }}", CHAT) == "1"


@pytest.mark.long
@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "long"),
        ("{{ 10 ** (10 ** 8) }}", "long"),
        ("{{ 'x' * 10 ** 10 }}", "too much memory"),
        ("{% set n = namespace(x='xxxxxxxx') %}{% for i in range(64) %}{% set n.x = n.x ~ n.x %}"
         "{% endfor %}", "too much memory|too long"),
    ],
)  # fmt: skip
def test_a_template_that_takes_too_much_takes_nobody_with_it(process, source, words):
    with pytest.raises(TemplateError, match=words):
        process.render(source, CHAT)
    assert process.render("{{ 1 }}", CHAT) == "1"


def run_worker_with(monkeypatch, **constants):
    lines = "".join(f"w.{name} = {value};" for name, value in constants.items())
    code = f"import os, openinfer_text.templates._template_worker as w; {lines} w.main()"
    monkeypatch.setattr(_template_process, "_COMMAND", (sys.executable, "-P", "-c", code))


def test_a_process_that_was_lost_while_idle_is_replaced(process):
    assert process.render("1", CHAT) == "1"
    for _ in range(2):
        os.kill(process._process.pid, signal.SIGKILL)
        assert process.render("2", CHAT) == "2"


def test_a_process_that_ends_by_itself_is_no_fault_of_the_template(process, monkeypatch, caplog):
    run_worker_with(monkeypatch, _reply="lambda *arguments: os._exit(3)")
    with pytest.raises(TemplateProcessLost):
        process.render("1", CHAT)
    assert "ended with 3" in caplog.text
    monkeypatch.undo()
    assert process.render("1", CHAT) == "1"


def test_memory_that_does_not_come_back_ends_the_process(process, monkeypatch):
    with pytest.raises(TemplateError, match="too much memory"):
        process.render("{{ 'x' * 10 ** 10 }}", CHAT)
    assert process._process is None
    run_worker_with(monkeypatch, _MAX_GROWTH=-1)
    assert [process.render(text, CHAT) for text in "ab"] == ["a", "b"]
    assert process._process is None
    run_worker_with(monkeypatch, _answer="lambda *arguments: ['x'] * 10 ** 12")
    with pytest.raises(TemplateError, match="too much memory"):
        process.render("1", CHAT)


def test_a_template_runs_without_keys_and_without_rights(process, monkeypatch):
    monkeypatch.setenv("OPENINFER_API_KEY", "secret")
    assert process.render("1", CHAT) == "1"
    folder = Path("/proc", str(process._process.pid))
    assert b"secret" not in folder.joinpath("environ").read_bytes()
    limits = folder.joinpath("limits").read_text()
    for name in ("core file size", "file size", "processes"):
        (line,) = (line for line in limits.splitlines() if line.startswith(f"Max {name} "))
        assert line.removeprefix(f"Max {name}").split()[:2] == ["0", "0"]


def test_closing_while_the_process_is_started_waits_for_no_template(process, monkeypatch):
    started = []

    def start():
        closing.start()
        while not process._is_closed:
            time.sleep(0.001)
        time.sleep(0.1)  # it has found no process, and waits
        command = (sys.executable, "-c", "import time; time.sleep(60)")
        started.append(subprocess.Popen(command, stdin=-1, stdout=-1))
        return started[0]

    monkeypatch.setattr(_template_process, "_start", start)
    closing = threading.Thread(target=process.close, daemon=True)
    rendering = threading.Thread(target=lambda: errors.append(error_of(process)), daemon=True)
    errors = []
    rendering.start()
    rendering.join(timeout=10)
    closing.join(timeout=10)
    is_hanging = rendering.is_alive() or closing.is_alive()
    started[0].kill()
    assert not is_hanging
    assert errors == ["no more templates are rendered"]


def error_of(process):
    with pytest.raises(TemplateError) as caught:
        process.render("1", CHAT)
    return caught.value.message


def test_wrong_messages_are_named(process):
    with pytest.raises(InvalidChatInput, match="messages") as caught:
        process.render(SOURCE, [{"role": "user", "content": [{"type": "image"}]}])
    assert caught.value.field == "messages[0].content[0].type"
    with pytest.raises(InvalidChatInput, match="tools"):
        process.render("{{ messages }}", CHAT, tools=[{"type": "function"}])
    with pytest.raises(InvalidChatInput, match=r"chat_template_kwargs\.chat_template"):
        process.render(SOURCE, CHAT, chat_template_kwargs={"chat_template": "{{ 1 }}"})


def test_closing_ends_the_process_in_the_middle_of_a_template():
    process = TemplateProcess(SPECIALS)
    assert process.render("1", CHAT) == "1"
    pid, errors = process._process.pid, []

    def render():
        try:
            process.render("{{ 10 ** (10 ** 8) }}", CHAT)
        except TemplateError as error:
            errors.append(error)

    thread = threading.Thread(target=render)
    thread.start()
    time.sleep(0.1)
    process.close()
    thread.join(timeout=10)
    assert not thread.is_alive()
    assert len(errors) == 1
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises(TemplateError):
        process.render("1", CHAT)
    process.close()


def test_a_model_without_a_template_takes_a_foreign_one(checkpoints):
    model = TextModel(Tokenizer.from_folder(checkpoints["qwen"]))
    with pytest.raises(NoChatTemplate):
        model.encode_chat(CHAT[1:])
    prompt = model.encode_chat(CHAT[1:], chat_template="{{ messages[0].content }}")
    assert (prompt.text, model.decode(unpack_ids(prompt.token_ids))) == ("So", "So")
    model.close()
