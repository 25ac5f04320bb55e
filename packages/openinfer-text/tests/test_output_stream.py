"""One choice from token ids to the pieces of a response."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openinfer_contract import Finished, unpack_ids
from openinfer_text import (
    AssistantTurn,
    Content,
    OutputStream,
    OutputText,
    ParseContext,
    Reasoning,
    TextModel,
    Tokenizer,
)
from openinfer_text.parsers._hermes import HermesParser
from openinfer_text.parsers._output_parser import OutputParser
from openinfer_text.parsers._think import QWEN3

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
TOOLS = ({"type": "function", "function": {"name": "f"}},)
WHOLE = f"<think>\nLet me see 😀.\n</think>\n\nI call.\n{CALL}"


@pytest.fixture(scope="module")
def tokenizer(checkpoints):
    return Tokenizer.from_folder(checkpoints["qwen"])


def _ids(tokenizer, text):
    return unpack_ids(tokenizer.encode(text, add_special_tokens=False))


def _stream(tokenizer, *, is_parsed=True, **options):
    parser = None
    if is_parsed:
        context = ParseContext(tools=TOOLS, new_call_id=lambda: "call_1")
        parser = OutputParser(context, reasoning=QWEN3, tools=HermesParser())
        options["shown_tokens"] = parser.markers
    output = OutputText(tokenizer, **options)
    return OutputStream(output, parser, eos_token_ids=(tokenizer.eos_token_id,))


def _run(stream, groups, end):
    turn, deltas = AssistantTurn(), []
    for index, group in enumerate(groups):
        delta = stream.push(group, end if index == len(groups) - 1 else None)
        turn.add(delta.pieces)
        deltas.append(delta)
        if stream.is_done:
            break
    return turn.message(), deltas


@given(sizes=st.lists(st.integers(1, 20), min_size=1), stops=st.sampled_from([(), ("call",)]))
@settings(max_examples=50, deadline=None)
def test_merged_events_give_the_same_choice(tokenizer, sizes, stops):
    ids = [*_ids(tokenizer, WHOLE), tokenizer.eos_token_id]
    end = Finished(reason="stop", stop_token_id=tokenizer.eos_token_id)
    groups, rest = [], ids
    while rest:
        size = sizes[len(groups) % len(sizes)]
        groups.append(rest[:size])
        rest = rest[size:]
    options = {"stops": stops, "stop_token_ids": [tokenizer.eos_token_id]}
    alone, merged = _stream(tokenizer, **options), _stream(tokenizer, **options)
    wanted, singles = _run(alone, [[each] for each in ids], end)
    found, deltas = _run(merged, groups, end)
    assert found == wanted
    assert (merged.num_tokens, merged.is_done) == (alone.num_tokens, True)
    assert sum(len(delta.token_ids) for delta in deltas) == merged.num_tokens
    last, other = singles[-1], deltas[-1]
    assert (other.reason, other.finish_reason, other.stop_reason) == (
        last.reason, last.finish_reason, last.stop_reason,
    )  # fmt: skip
    if not stops:
        assert wanted["reasoning"] == "Let me see 😀."
        assert wanted["tool_calls"][0]["function"]["name"] == "f"
        assert (last.reason, last.finish_reason, last.stop_reason) == ("stop", "tool_calls", None)
        thought, section = "Let me see 😀.", WHOLE[: WHOLE.index("I call")]
        most = len(_ids(tokenizer, section))
        assert len(_ids(tokenizer, thought)) <= alone.num_reasoning_tokens <= most


def test_a_stop_string_ends_the_choice_before_the_engine_does(tokenizer):
    stream = _stream(tokenizer, is_parsed=False, stops=["fox"])
    delta = stream.push(_ids(tokenizer, "The quick brown fox jumps"))
    assert stream.is_done
    assert (delta.text, delta.reason, delta.stop_reason) == ("The quick brown ", "stop", "fox")
    assert len(delta.token_ids) == stream.num_tokens < len(_ids(tokenizer, "The quick brown fox j"))


def test_held_text_comes_with_the_end_and_may_complete_a_stop_string(tokenizer):
    broken = _ids(tokenizer, "𝄞")[:1]
    stream = _stream(tokenizer, is_parsed=False)
    assert stream.push(broken).text == ""
    delta = stream.push([], Finished(reason="length"))
    assert (delta.text, delta.finish_reason, delta.stop_reason) == ("\ufffd", "length", None)
    stream = _stream(tokenizer, is_parsed=False, stops=["\ufffd"])
    delta = stream.push(broken, Finished(reason="length"))
    assert (delta.text, delta.finish_reason, delta.stop_reason) == ("", "stop", "\ufffd")


def test_stop_tokens_are_reported_unless_they_end_every_sequence(tokenizer):
    (newline,) = _ids(tokenizer, "\n")
    for token_id, reported in ((newline, newline), (tokenizer.eos_token_id, None)):
        stream = _stream(tokenizer, is_parsed=False, stop_token_ids=[token_id])
        ids = [*_ids(tokenizer, "so"), token_id]
        delta = stream.push(ids, Finished(reason="stop", stop_token_id=token_id))
        assert (delta.text, delta.stop_reason) == ("so", reported)
        assert delta.token_ids == ids


def test_a_choice_that_was_cut_off_in_a_call_keeps_its_reason(tokenizer):
    stream = _stream(tokenizer)
    delta = stream.push(_ids(tokenizer, CALL[:-20]), Finished(reason="length"))
    assert (delta.reason, delta.finish_reason) == ("length", "length")


def test_without_a_parser_all_text_is_content(tokenizer):
    stream = _stream(tokenizer, is_parsed=False)
    delta = stream.push(_ids(tokenizer, WHOLE))
    assert delta.pieces == [Content(delta.text)]
    assert not any(isinstance(piece, Reasoning) for piece in delta.pieces)
    assert stream.push([]).pieces == []


def test_tokens_have_offsets_if_requested(tokenizer):
    stream = _stream(tokenizer, is_parsed=False, is_located=True)
    ids = _ids(tokenizer, "hello world")
    delta = stream.push(ids)
    assert len(delta.starts) == len(ids)
    assert delta.starts[0] == 0


def test_nothing_is_appended_to_a_choice_that_has_ended(tokenizer):
    stream = _stream(tokenizer, is_parsed=False)
    stream.push([], Finished(reason="abort"))
    with pytest.raises(AssertionError):
        stream.push([1])


def test_a_model_shows_its_parsers_markers(checkpoints):
    model = TextModel(Tokenizer.from_folder(checkpoints["qwen"]), tool_parser=HermesParser())
    parser = model.parser("", tools=TOOLS)
    output = model.output(stops=["never"], shown_tokens=parser.markers)
    stream = OutputStream(output, parser, eos_token_ids=model.stop_token_ids)
    delta = stream.push(_ids(model.tokenizer, CALL), Finished(reason="stop"))
    assert delta.finish_reason == "tool_calls"
    model.close()
