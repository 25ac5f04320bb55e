"""`LLM.chat` over a scripted model: messages, calls, reasoning."""

import argparse

import pytest

from openinfer import LLM, RequestRejected, SamplingParams
from openinfer.terminal._local import LocalModel
from openinfer.terminal._terminal_model import Ended
from openinfer_testing import install_scripted_line, write_scripted_checkpoint
from openinfer_text import AssistantTurn, Content

CALL = '<tool_call>\n{"name": "python", "arguments": {"code": "print(6 * 7)"}}\n</tool_call>'
TOOL = {"type": "function", "function": {"name": "python", "parameters": {"type": "object"}}}
HELLO = [{"role": "user", "content": "6 * 7?"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("scripted")
    install_scripted_line(root / "site")
    answers = [f"<think>\nhm\n</think>\n\nLet me see.\n{CALL}", "It is 42.", "So <tool_c"]
    return write_scripted_checkpoint(root / "model", answers)


@pytest.fixture
def llm(folder, monkeypatch):
    monkeypatch.syspath_prepend(folder.parent / "site")
    with LLM(folder) as llm:
        yield llm


def _chat(llm, messages, **options):
    (answer,) = llm.chat(messages, has_progress_bar=False, **options)
    return answer


def test_a_call_is_answered_and_the_conversation_goes_on(llm):
    answer = _chat(llm, HELLO, tools=[TOOL])
    assert answer.text == f"<think>\nhm\n</think>\n\nLet me see.\n{CALL}"
    assert answer.finish_reason == "tool_calls"
    (call,) = answer.message["tool_calls"]
    assert answer.message == {
        "role": "assistant",
        "content": "Let me see.",
        "reasoning": "hm",
        "reasoning_content": "hm",
        "tool_calls": [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": "python", "arguments": '{"code": "print(6 * 7)"}'},
            }
        ],
    }
    result = {"role": "tool", "tool_call_id": call["id"], "content": "42"}
    end = _chat(llm, [*HELLO, answer.message, result], tools=[TOOL])
    assert end.message == {"role": "assistant", "content": "It is 42."}
    assert (end.text, end.finish_reason) == ("It is 42.", "stop")


def test_without_tools_calls_are_text(llm):
    answer = _chat(llm, HELLO)
    assert answer.message["content"] == f"Let me see.\n{CALL}"
    assert answer.finish_reason == "stop"


def test_a_call_that_is_cut_off_ends_by_length(llm):
    answer = _chat(llm, HELLO, tools=[TOOL], params=SamplingParams(max_tokens=28))
    assert answer.finish_reason == "length"
    assert answer.message["tool_calls"][0]["function"]["arguments"].startswith('{"code"')


def test_what_was_held_back_at_the_end_is_content(llm):
    said = {"role": "assistant", "content": "x"}
    answer = _chat(llm, [*HELLO, said, *HELLO, said, *HELLO], tools=[TOOL])
    assert answer.message["content"] == answer.text == "So <tool_c"


def test_samples_are_parsed_each_and_prompts_have_no_message(llm):
    params = SamplingParams(max_tokens=None, n=2, temperature=0)
    answers = llm.chat(HELLO, params, tools=[TOOL], has_progress_bar=False)
    ids = {answer.message["tool_calls"][0]["id"] for answer in answers}
    assert len(ids) == 2
    assert llm.generate("x", has_progress_bar=False)[0].message is None


@pytest.mark.parametrize("options", [{"tool_call_parser": "none"}, {"chat_template": "plain"}])
def test_tools_that_nobody_would_find_are_refused(folder, monkeypatch, tmp_path, options):
    monkeypatch.syspath_prepend(folder.parent / "site")
    if "chat_template" in options:
        (tmp_path / "plain").write_text("{{ messages }}")
        options = {"chat_template": str(tmp_path / "plain")}
    with LLM(folder, **options) as llm, pytest.raises(RequestRejected, match="tool") as caught:
        llm.chat(HELLO, tools=[TOOL])
    assert caught.value.field == "tools"


@pytest.mark.parametrize(
    ("tool", "field"),
    [
        ("f", "tools[1]"),
        ({"type": "web_search"}, "tools[1].type"),
        ({"type": "function", "function": {"name": ""}}, "tools[1].function.name"),
        ({"type": "function", "function": {"name": "f", "parameters": 1}},
         "tools[1].function.parameters"),
    ],
)  # fmt: skip
def test_definitions_are_checked_as_over_http(llm, tool, field):
    with pytest.raises(RequestRejected, match=field.replace("[", r"\[")) as caught:
        llm.chat(HELLO, tools=[TOOL, tool])
    assert caught.value.field == field


def test_half_a_surrogate_pair_is_refused_by_field(llm):
    with pytest.raises(RequestRejected) as caught:
        llm.chat([{"role": "user", "content": "\ud83d"}])
    assert caught.value.field == "messages"
    with pytest.raises(RequestRejected) as caught:
        llm.generate("\ud83d")
    assert caught.value.field == "prompt"


def test_the_terminals_view_of_it(folder, monkeypatch):
    monkeypatch.syspath_prepend(folder.parent / "site")
    model = LocalModel(str(folder), argparse.Namespace(), ())
    try:
        *pieces, end = model.stream_chat(HELLO, {}, [TOOL])
        turn = AssistantTurn()
        turn.add(pieces)
        assert (turn.content, turn.reasoning, len(turn.calls)) == ("Let me see.", "hm", 1)
        assert end == Ended("tool_calls")
        stream = model.stream_chat([*HELLO, {"role": "assistant", "content": "x"}], {})
        first = next(stream)
        assert isinstance(first, Content)
        assert "It is 42.".startswith(first.text)
        stream.close()
        left = model.num_tokens_left(HELLO)
        assert left == 4096 - len(model._llm.text.encode_chat(HELLO).token_ids) // 4
        assert model.num_tokens_left([*HELLO, *HELLO], [TOOL]) < left
        assert model.num_tokens_left([{"role": "user", "content": "\ud83d"}]) is None
        *_, end = model.stream_chat(HELLO, {"max_tokens": 3})
        assert end == Ended("length")
        with pytest.raises(RequestRejected):
            next(model.stream_chat([{"content": "x"}], {}))
    finally:
        model.close()
