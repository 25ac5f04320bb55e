import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openinfer_text import StopSet, StopStrings


def _naive(text, stops):
    for end in range(1, len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return stop, end
    return None, len(text)


@given(
    pieces=st.lists(st.text("abc", max_size=4), max_size=12),
    stops=st.lists(st.text("abc", min_size=1, max_size=5), max_size=4),
    include=st.booleans(),
)
@settings(max_examples=600, deadline=None)
def test_equals_a_naive_search_over_the_whole_text(pieces, stops, include):
    text = "".join(pieces)
    stop, end = _naive(text, stops)
    expected = text[: end if include or stop is None else end - len(stop)]
    watch = StopStrings(stops, include_stop_str_in_output=include)
    shown = ""
    seen = ""
    for piece in pieces:
        shown += watch.push(piece)
        seen += piece
        if watch.matched is None:
            held = next(
                (seen[i:] for i in range(len(seen)) if any(s.startswith(seen[i:]) for s in stops)),
                "",
            )
            assert watch.held == held
            assert shown + held == seen
    shown += watch.flush()
    assert (shown, watch.matched) == (expected, stop)


def test_nothing_passes_after_the_match():
    watch = StopStrings(["END"])
    assert watch.push("one EN") == "one "
    assert watch.held == "EN"
    assert watch.push("D two") == ""
    assert watch.push(" three") == ""
    assert watch.flush() == ""
    assert watch.matched == "END"


def test_without_stops_text_passes():
    assert StopStrings([]).push("x") == "x"


def test_an_empty_stop_string_is_refused():
    with pytest.raises(ValueError, match="empty"):
        StopStrings(["a", ""])


@pytest.mark.timed
def test_long_stops_take_memory_once_and_in_proportion():
    stops = [f"{number:04}" + "ab" * 510 for number in range(64)]
    tracemalloc.start()
    try:
        shared = StopSet(stops)
        watches = [StopStrings(shared) for _ in range(1000)]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 500_000
    for watch in watches[:3]:
        assert watch.push("x" + stops[7][:-1]) == "x"
        assert watch.push("b") == ""
        assert watch.matched == stops[7]
