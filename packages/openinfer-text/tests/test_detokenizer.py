import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openinfer_contract import unpack_ids
from openinfer_text import IncrementalDetokenizer, Tokenizer

BYTE_LEVEL = ["qwen", "llama3", "flagged"]
TEXTS = st.lists(
    st.one_of(
        st.sampled_from([" hello", "world", "😀", "👩‍👩‍👧", "你好，", "e\u0301", "नमस्ते"]),
        st.sampled_from(["\n", " ", "<tool_call>", "\ufffd"]),
        st.text(max_size=5),
    ),
    max_size=12,
).map("".join)  # fmt: skip


@pytest.fixture(scope="module")
def loaded(checkpoints):
    return {name: Tokenizer.from_folder(folder) for name, folder in checkpoints.items()}


def _stream(tokenizer, ids, **options):
    detokenizer = IncrementalDetokenizer(tokenizer, **options)
    return [*(detokenizer.push(i) for i in ids), detokenizer.flush()]


@pytest.mark.parametrize("name", [*BYTE_LEVEL, "sentencepiece", "byte_window", "metaspace"])
@pytest.mark.parametrize("skip", [True, False])
@given(text=TEXTS)
@settings(max_examples=80, deadline=None)
def test_real_text_equals_the_full_decode(name, skip, loaded, text):
    tokenizer = loaded[name]
    ids = unpack_ids(tokenizer.encode(text))
    pieces = _stream(tokenizer, ids, skip_special_tokens=skip)
    assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=skip)
    if "\ufffd" not in tokenizer.decode(ids):
        assert not any("\ufffd" in piece for piece in pieces)


@pytest.mark.parametrize("name", BYTE_LEVEL)
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_random_ids_equal_the_full_decode(name, loaded, data):
    tokenizer = loaded[name]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 3), max_size=40))
    skip = data.draw(st.booleans())
    pieces = _stream(tokenizer, ids, skip_special_tokens=skip)
    assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=skip)


@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_random_ids_with_byte_fallback(loaded, data):
    tokenizer = loaded["sentencepiece"]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=30))
    ours = "".join(_stream(tokenizer, ids, skip_special_tokens=False))
    theirs = tokenizer.decode(ids, skip_special_tokens=False)
    # The library replaces a whole broken run of bytes, but its complete characters were already
    # shown here.
    assert len(ours.encode()) <= len(theirs.encode())
    runs = re.findall(rb"(?:\xff\d+,)+", b"".join(
        b"\xff%d," % i if re.fullmatch("<0x..>", tokenizer._engine.token(i)) else b"." for i in ids
    ))  # fmt: skip
    valid = True
    for run in runs:
        data_bytes = b"".join(
            tokenizer.token_bytes(int(i)) for i in run.replace(b"\xff", b"").split(b",") if i
        )
        try:
            data_bytes.decode()
        except UnicodeDecodeError:
            valid = False
    if valid:
        assert ours == theirs


def test_a_character_is_held_until_it_is_complete(loaded):
    for name in ("qwen", "sentencepiece", "byte_window"):
        tokenizer = loaded[name]
        ids = unpack_ids(tokenizer.encode("a𝄞", add_special_tokens=False))
        detokenizer = IncrementalDetokenizer(tokenizer)
        pieces = [detokenizer.push(i) for i in ids]
        assert pieces[-4:] == ["", "", "", "𝄞"]
        assert not detokenizer.has_pending


def test_an_incomplete_character_is_replaced_at_the_end(loaded):
    tokenizer = loaded["qwen"]
    ids = unpack_ids(tokenizer.encode("𝄞"))[:-1]
    assert _stream(tokenizer, ids) == ["", "", "", "\ufffd"]


def test_a_broken_run_of_byte_tokens_is_replaced_byte_by_byte(loaded):
    tokenizer = loaded["sentencepiece"]
    ids = [tokenizer.token_id(token) for token in ("<0xF0>", "<0x9F>", "d", "<0xC3>")]
    assert _stream(tokenizer, ids) == ["", "", "\ufffd\ufffdd", "", "\ufffd"]
    assert tokenizer.decode(ids) == "\ufffd\ufffdd\ufffd"


def test_bytes_that_never_end_do_not_hold_an_opaque_stream_for_ever(loaded):
    tokenizer = loaded["byte_window"]
    pieces = _stream(tokenizer, [tokenizer.token_id("<0xFF>")] * 12)
    assert any(pieces[:8])
    assert "".join(pieces) == "\ufffd" * 12


def test_context_keeps_the_space_of_a_continued_text(loaded):
    tokenizer = loaded["sentencepiece"]
    prompt = unpack_ids(tokenizer.encode("The quick", add_special_tokens=False))
    output = unpack_ids(tokenizer.encode("brown", add_special_tokens=False))
    assert "".join(_stream(tokenizer, output)) == "brown"
    assert "".join(_stream(tokenizer, output, context_ids=prompt)) == " brown"


@pytest.mark.parametrize("name", ["qwen", "sentencepiece", "byte_window", "metaspace"])
def test_context_may_end_inside_a_character(loaded, name):
    tokenizer = loaded[name]
    ids = unpack_ids(tokenizer.encode("hello 😀!", add_special_tokens=False))
    whole = tokenizer.decode(ids)
    for cut in range(1, len(ids)):
        shown = _stream(tokenizer, ids[:cut])[:-1]
        rest = _stream(tokenizer, ids[cut:], context_ids=ids[:cut])
        assert "".join(shown) + "".join(rest) == whole


def test_spaces_between_special_tokens(loaded):
    tokenizer = loaded["metaspace"]
    eos = tokenizer.eos_token_id
    hello = unpack_ids(tokenizer.encode("The lazy"))
    ids = [*hello, eos, eos, *hello]
    options = {"skip_special_tokens": False}
    default = "".join(_stream(tokenizer, ids, **options))
    assert default == tokenizer.decode(ids, skip_special_tokens=False)
    bare = "".join(_stream(tokenizer, ids, spaces_between_special_tokens=False, **options))
    assert bare.replace(" ", "") == default.replace(" ", "")
    assert "</s></s>" in bare
