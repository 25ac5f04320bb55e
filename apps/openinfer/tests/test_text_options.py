import pytest

from openinfer import LLM, UsageError
from openinfer.launch._resolve import resolve_model
from openinfer.options._text_options import TextOptions
from openinfer_text import ParserError


def test_flags_become_what_the_text_is_loaded_with(tmp_path):
    file = tmp_path / "template.jinja"
    file.write_text("{{ messages }}<think></think>")
    values = {"chat_template": str(file), "tool_call_parser": "hermes"}
    text = TextOptions.from_values(values).load(resolve_model(None).path)
    assert text.chat_template is not None
    assert text.chat_template.tools_source == file.read_text()
    assert text.tool_parser is not None
    assert text.reasoning_parser.name == "qwen3"
    assert TextOptions.from_values({}) == TextOptions()


def test_the_built_in_model_writes_hermes_calls():
    text = TextOptions().load(resolve_model(None).path)
    assert text.tool_parser.name == "hermes"
    assert text.reasoning_parser is None


@pytest.mark.parametrize("flag", ["tool_call_parser", "reasoning_parser"])
def test_an_unknown_parser_is_refused_before_anything_is_loaded(flag):
    with pytest.raises(ParserError, match="nope: not installed"):
        TextOptions.from_values({flag: "nope"})
    with pytest.raises(ParserError, match="nope: not installed"):
        LLM(**{flag: "nope"})


def test_a_template_that_cannot_be_read():
    with pytest.raises(UsageError, match="chat template"):
        TextOptions.from_values({"chat_template": "no/such/file"})
