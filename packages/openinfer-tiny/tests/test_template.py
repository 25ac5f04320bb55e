import json

import pytest

jinja2_sandbox = pytest.importorskip("jinja2.sandbox")

_TOOL = {"type": "function", "function": {"name": "python", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def render(folder):
    source = json.loads((folder / "tokenizer_config.json").read_text())["chat_template"]
    environment = jinja2_sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(source).render


def test_a_talk(render):
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": "Bye"},
    ]
    assert render(messages=messages, add_generation_prompt=True) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello!<|im_end|>\n"
        "<|im_start|>user\nBye<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_no_system_turn_is_invented(render):
    text = render(messages=[{"role": "user", "content": "Hi"}])
    assert text == "<|im_start|>user\nHi<|im_end|>\n"


def test_tools_are_listed_in_the_system_turn(render):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    text = render(messages=messages, tools=[_TOOL])
    system, user, _ = text.split("<|im_end|>\n")
    assert system.startswith("<|im_start|>system\nBe brief.\n\n")
    listed = system.partition("<tools>\n")[2].partition("\n</tools>")[0]
    assert json.loads(listed) == _TOOL
    assert user == "<|im_start|>user\nHi"


@pytest.mark.parametrize("arguments", [{"code": "1 + 2"}, '{"code": "1 + 2"}'])
def test_calls_and_responses_take_the_hermes_form(render, arguments):
    call = {"type": "function", "function": {"name": "python", "arguments": arguments}}
    messages = [
        {"role": "user", "content": "What is 1 + 2?"},
        {"role": "assistant", "content": None, "tool_calls": [call, call]},
        {"role": "tool", "content": "3"},
        {"role": "tool", "content": "3"},
        {"role": "assistant", "content": "It is 3."},
    ]
    one_call = '<tool_call>\n{"name": "python", "arguments": {"code": "1 + 2"}}\n</tool_call>'
    one_response = "\n<tool_response>\n3\n</tool_response>"
    assert render(messages=messages) == (
        "<|im_start|>user\nWhat is 1 + 2?<|im_end|>\n"
        f"<|im_start|>assistant\n{one_call}\n{one_call}<|im_end|>\n"
        f"<|im_start|>user{one_response}{one_response}<|im_end|>\n"
        "<|im_start|>assistant\nIt is 3.<|im_end|>\n"
    )
