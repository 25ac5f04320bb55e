import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openinfer_text import Tokenizer
from openinfer_text.tokens._segment_cache import SegmentCache, literal_pattern


@given(words=st.sets(st.text("ab<.", min_size=1, max_size=4), min_size=1), text=st.text("ab<."))
def test_pattern_is_leftmost_longest(words, text):
    plain = re.compile("|".join(re.escape(w) for w in sorted(words, key=len, reverse=True)))
    ours = re.compile(literal_pattern(words))
    assert [m.span() for m in ours.finditer(text)] == [m.span() for m in plain.finditer(text)]


def test_pattern_of_thousands_of_words_is_fast():
    words = [f"<unused{n}>" for n in range(6000)]
    pattern = re.compile(literal_pattern(words))
    assert pattern.findall("<unused1><unused5999> <unused6000>") == ["<unused1>", "<unused5999>"]
    assert pattern.search("<" * 20_000) is None


@pytest.mark.long
@pytest.mark.parametrize("step", [1, 7])
def test_nested_prefixes_overflow_no_stack(step):
    """A special token longer than the recursion limit, and all its prefixes."""
    words = ["x" * count for count in range(1, 1500, step)]
    pattern = re.compile(literal_pattern(words))
    assert pattern.match("x" * 5000).group() == words[-1]
    assert pattern.match("x" * 20 + "y").group() == "x" * (20 if step == 1 else 15)


def test_the_cache_keeps_the_most_recently_used():
    cache = SegmentCache(max_bytes=5 * 213)
    for name in "abcde":
        cache.put_all([(name, b"x" * 12)])
    assert cache.get_all(["a"]) == [b"x" * 12]
    cache.put_all([("f", b"x" * 12)])
    assert [ids is not None for ids in cache.get_all(list("abcdef"))] == [
        True, False, True, True, True, True,
    ]  # fmt: skip
    assert cache.num_bytes == 5 * 213


def test_the_cache_never_exceeds_its_budget():
    cache = SegmentCache(max_bytes=10_000)
    for n in range(500):
        cache.put_all([(f"{n} é" * (n % 40), bytes(4 * (n % 97)))])
        assert cache.num_bytes <= 10_000
    cache.put_all([("big", bytes(9000))])
    assert cache.get_all(["big"]) == [None]


def test_a_cache_of_size_0_keeps_nothing(checkpoints):
    with pytest.raises(ValueError, match="negative"):
        SegmentCache(-1)
    off = Tokenizer.from_folder(checkpoints["qwen"], segment_cache_bytes=0)
    on = Tokenizer.from_folder(checkpoints["qwen"])
    text = "<|im_start|>hello<|im_end|>"
    assert off.encode(text) == off.encode(text) == on.encode(text)


def test_known_segments_are_not_encoded_again(checkpoints, monkeypatch):
    tokenizer = Tokenizer.from_folder(checkpoints["qwen"])
    seen: list[str] = []
    encode = tokenizer._engine.encode_pieces
    monkeypatch.setattr(
        tokenizer._engine, "encode_pieces", lambda texts: [seen.extend(texts), encode(texts)][1]
    )
    turn = "<|im_start|>user\nhello<|im_end|>\n"
    tokenizer.encode(turn + turn)
    tokenizer.encode(turn + turn + "<|im_start|>user\nmore<|im_end|>\n")
    assert seen == ["user\nhello", "\n", "user\nmore"]
