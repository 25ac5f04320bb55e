import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openinfer_contract import unpack_ids
from openinfer_text import OutputText, Tokenizer


@pytest.fixture(scope="module")
def tokenizer(checkpoints):
    return Tokenizer.from_folder(checkpoints["qwen"])


def _ids(tokenizer, text):
    return unpack_ids(tokenizer.encode(text, add_special_tokens=False))


@given(
    text=st.text("ab 😀é\n", max_size=40),
    stops=st.lists(st.text("ab 😀é\n", min_size=1, max_size=4), max_size=3),
    sizes=st.lists(st.integers(1, 5), min_size=1),
)
@settings(max_examples=200, deadline=None)
def test_grouping_of_tokens_changes_nothing(tokenizer, text, stops, sizes):
    ids = _ids(tokenizer, text)

    def run(groups):
        output = OutputText(tokenizer, stops=stops)
        deltas = [*(output.push(group) for group in groups), output.finish()]
        return (
            "".join(delta.text for delta in deltas),
            deltas[-1].stopped_by,
            sum(delta.num_tokens for delta in deltas),
        )

    groups = []
    rest = list(ids)
    while rest:
        size = sizes[len(groups) % len(sizes)]
        groups.append(rest[:size])
        rest = rest[size:]
    one_by_one = run([[i] for i in ids])
    assert run(groups) == one_by_one
    if one_by_one[1] is None:
        assert one_by_one[0] == tokenizer.decode(ids)
        assert one_by_one[2] == len(ids)
    else:
        assert not any(stop in one_by_one[0] for stop in stops)


def test_a_stop_string_across_tokens_reports_the_used_tokens(tokenizer):
    ids = _ids(tokenizer, "hello world, and then")
    output = OutputText(tokenizer, stops=["o w"])
    delta = output.push(ids)
    assert (delta.text, delta.stopped_by) == ("hell", "o w")
    assert delta.num_tokens < len(ids)
    assert output.push(ids) == ("", "o w", 0)
    assert output.finish() == ("", "o w", 0)


def test_text_that_may_begin_a_stop_string_is_held_back(tokenizer):
    ids = [i for char in "ab𝄞" for i in _ids(tokenizer, char)]
    output = OutputText(tokenizer, stops=["bX", "𝄞𝄞"])
    # a | b may begin "bX" | three tokens of a cut character | its last byte may begin "𝄞𝄞"
    texts = [output.push([token_id]).text for token_id in ids]
    assert texts == ["a", "", "", "", "", "b"]
    assert output.finish().text == "𝄞"


def test_stop_token_has_no_text(tokenizer):
    newline = _ids(tokenizer, "\n")
    ids = [*_ids(tokenizer, "hello"), *newline]
    plain = OutputText(tokenizer, stop_token_ids=newline)
    assert plain.push(ids) == ("hello", None, len(ids))
    including = OutputText(tokenizer, stop_token_ids=newline, include_stop_str_in_output=True)
    assert including.push(ids).text == "hello\n"


def test_min_tokens_delays_stop_strings(tokenizer):
    ids = _ids(tokenizer, "\n") * 4
    assert OutputText(tokenizer, stops=["\n"], min_tokens=3).push(ids) == ("\n\n\n", "\n", 4)


def test_special_tokens_are_skipped_or_shown(tokenizer):
    ids = [*_ids(tokenizer, "hi"), tokenizer.eos_token_id]
    assert OutputText(tokenizer).push(ids).text == "hi"
    assert OutputText(tokenizer, skip_special_tokens=False).push(ids).text == "hi<|im_end|>"


@given(text=st.text("ab 😀é你\n", min_size=1, max_size=20), size=st.integers(1, 5))
@settings(max_examples=100, deadline=None)
def test_tokens_are_found_where_they_start(tokenizer, text, size):
    ids = _ids(tokenizer, text)
    output, starts = OutputText(tokenizer, is_located=True), []
    for at in range(0, len(ids), size):
        output.push(ids[at : at + size])
        starts += output.take_starts()
    assert len(starts) == len(ids)
    assert starts == sorted(starts)
    for token_id, start in zip(ids, starts, strict=True):
        # The first character may have begun in the previous token.
        assert text[start:].encode().find(tokenizer.token_bytes(token_id)) in range(4)


@pytest.mark.parametrize("family", ["qwen", "sentencepiece", "byte_window"])
def test_a_token_after_a_broken_character_starts_after_it(checkpoints, family):
    tokenizer = Tokenizer.from_folder(checkpoints[family])
    table = tokenizer.bytes_table()
    output = OutputText(tokenizer, is_located=True)
    text = output.push([table.index(b"\xf0"), tokenizer.token_id("a")]).text + output.finish().text
    assert output.take_starts() == [0, text.index("a")]
    assert output.take_starts() == []


def test_silent_and_special_tokens_start_where_the_next_text_does(tokenizer):
    special = tokenizer.token_id("<|im_end|>")
    a, b = _ids(tokenizer, "a")[0], _ids(tokenizer, "b")[0]
    output = OutputText(tokenizer, stops=["b"], stop_token_ids=[a], is_located=True)
    output.push([special, a, special, b, b])
    assert output.take_starts() == [0, 0, 0, 0]


@pytest.mark.parametrize("is_context", [True, False])
def test_a_broken_character_comes_before_the_complete_ones_after_it(tokenizer, is_context):
    table = {tokenizer.token_bytes(i): i for i in range(tokenizer.vocab_size)}
    broken, *whole = (table[part] for part in (b"\xc3", b"a", b"b"))
    output = OutputText(tokenizer, context_ids=[broken] if is_context else ())
    texts = [] if is_context else [output.push([broken]).text]
    texts += [output.push([token_id]).text for token_id in whole]
    assert texts == [""] * (not is_context) + ["\ufffda", "b"]
