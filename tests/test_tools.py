"""Tool calls and reasoning through the real server, by the official client."""

import json
import os
import subprocess
import sys

import openai
import pytest

from openinfer_testing import install_scripted_line, write_scripted_checkpoint

_ARGUMENTS = '{"code": "print(\\"</tool_call>\\")"}'
_CALL = f'<tool_call>\n{{"name": "python", "arguments": {_ARGUMENTS}}}\n</tool_call>'
_OTHER = '<tool_call>\n{"name": "shell", "arguments": {"command": "ls"}}\n</tool_call>'
_ANSWERS = [f"<think>\nhm\n</think>\n\nLet me see.\n{_CALL}\n{_OTHER}", "That was it."]
_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Runs {name}.",
            "parameters": {"type": "object", "properties": {argument: {"type": "string"}}},
        },
    }
    for name, argument in (("python", "code"), ("shell", "command"))
]
_USER = {"role": "user", "content": "What does it print?"}


@pytest.fixture(scope="module")
def server(tmp_path_factory, start_shared_server):
    tmp_path = tmp_path_factory.mktemp("scripted")
    site = install_scripted_line(tmp_path / "site")
    folder = write_scripted_checkpoint(tmp_path / "model", _ANSWERS)
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    options = ("--served-model-name", "scripted", "--api-server-count", "2", "--step-s", "0.005")
    return start_shared_server("--model", str(folder), *options, env={"PYTHONPATH": path})


def _ask(server, messages, **options):
    return server.client.chat.completions.create(
        model="scripted", messages=messages, **({"tools": _TOOLS} | options)
    )


def test_a_round_of_calls(server):
    answer = _ask(server, [_USER]).choices[0]
    assert answer.finish_reason == "tool_calls"
    assert answer.message.content == "Let me see."
    assert answer.message.model_extra["reasoning"] == "hm"
    assert answer.message.model_extra["reasoning_content"] == "hm"
    calls = answer.message.tool_calls
    assert [(call.function.name, call.function.arguments) for call in calls] == [
        ("python", _ARGUMENTS),
        ("shell", '{"command": "ls"}'),
    ]
    results = [{"role": "tool", "tool_call_id": call.id, "content": "x"} for call in calls]
    end = _ask(server, [_USER, answer.message.to_dict(), *results]).choices[0]
    assert (end.message.content, end.finish_reason) == ("That was it.", "stop")
    assert end.message.tool_calls is None
    assert any("tool calls by hermes, reasoning by qwen3" in line for line in server.log)


def test_a_stream_of_calls(server):
    names, arguments, texts, thoughts, num_chunks = {}, {}, "", "", 0
    for chunk in _ask(server, [_USER], stream=True):
        num_chunks += 1
        (choice,) = chunk.choices
        texts += choice.delta.content or ""
        thoughts += choice.delta.model_extra.get("reasoning") or ""
        for call in choice.delta.tool_calls or ():
            if call.id is not None:
                assert call.index not in names, "id and name come once"
                names[call.index] = call.function.name
            arguments.setdefault(call.index, "")
            arguments[call.index] += call.function.arguments
    assert choice.finish_reason == "tool_calls"
    assert num_chunks > 10
    assert (texts, thoughts) == ("Let me see.", "hm")
    assert names == {0: "python", 1: "shell"}
    assert arguments == {0: _ARGUMENTS, 1: '{"command": "ls"}'}


def test_the_clients_own_stream_helper_agrees(server):
    whole = _ask(server, [_USER]).choices[0].message
    with server.client.chat.completions.stream(
        model="scripted", messages=[_USER], tools=_TOOLS
    ) as stream:
        streamed = stream.get_final_completion().choices[0].message
    assert streamed.content == whole.content
    assert [call.function.arguments for call in streamed.tool_calls] == [
        call.function.arguments for call in whole.tool_calls
    ]


def test_cut_off_calls_end_by_length(server):
    answer = _ask(server, [_USER], max_tokens=30).choices[0]
    assert answer.finish_reason == "length"
    (call,) = answer.message.tool_calls
    assert _ARGUMENTS.startswith(call.function.arguments)
    again = _ask(server, [_USER, answer.message.to_dict(), _USER]).choices[0]
    assert again.message.content == "That was it.", "its conversation goes on"


def test_choices_and_tools_that_are_refused(server):
    for options, param in (
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type"),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            _ask(server, [_USER], **options)
        assert caught.value.param == param
    answer = _ask(server, [_USER], tool_choice="none").choices[0]
    assert answer.finish_reason == "stop"
    assert "<tool_call>" in answer.message.content


@pytest.mark.parametrize("stream", [False, True])
def test_the_built_in_model_calls_and_reads_the_result(tiny_server, stream):
    ask = {"model": "tiny", "temperature": 0, "tools": _TOOLS[:1]}
    messages = [{"role": "user", "content": "What is 1234 * 5678?"}]
    completions = tiny_server.client.chat.completions

    def answer():
        if not stream:
            return completions.create(messages=messages, **ask).choices[0]
        with completions.stream(messages=messages, **ask) as events:
            return events.get_final_completion().choices[0]

    choice = answer()
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert call.function.name == "python"
    ran = subprocess.run(
        [sys.executable, "-c", json.loads(call.function.arguments)["code"]],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert ran.stdout.strip() == "7006652"
    # The model cannot guess this result; it must read it.
    message = choice.message.to_dict()
    messages += [message, {"role": "tool", "tool_call_id": call.id, "content": "8041957\n"}]
    choice = answer()
    assert choice.finish_reason == "stop"
    assert "8041957" in choice.message.content.replace(",", "")


def test_an_unknown_parser_ends_the_start_with_a_sentence(call_openinfer):
    status, _, stderr = call_openinfer("serve", "--port", "0", "--tool-call-parser", "nope")
    assert status == 1
    assert "--tool-call-parser nope: not installed" in stderr
    assert "auto, none, deepseek_v3" in stderr
    assert "Traceback" not in stderr
