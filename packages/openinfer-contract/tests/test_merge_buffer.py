"""Merging of parts for a slow reader: in order, and with few copies."""

import time

import pytest

from openinfer_contract import (
    EventBuffer,
    Finished,
    MergeBuffer,
    TokenEvent,
    TokenLogprobs,
    pack_ids,
    unpack_ids,
)

SCORES = TokenLogprobs(
    sampled=bytes(4), ranks=bytes(4), num_top=20, top_ids=bytes(80), top=bytes(80)
)


class Text(str):
    def merged(self, later: "Text") -> "Text":
        return Text(self + later)


def test_parts_keep_their_order() -> None:
    buffer: MergeBuffer[Text] = MergeBuffer()
    assert buffer.merge_all() is None
    sizes = [0, 1, 1, 5, 0, 2, 1, 1, 1, 0, 0, 9, 1]
    for number, size in enumerate(sizes):
        buffer.add(Text(f"{number},"), size)
    whole = "".join(f"{number}," for number in range(len(sizes)))
    assert (buffer.merge_all(), buffer.merge_all()) == (whole, whole)
    buffer.add(Text("end"), 1)
    assert buffer.merge_all() == whole + "end"


@pytest.mark.timed
def test_a_reader_that_sleeps_costs_the_engine_little() -> None:
    buffer, begun = EventBuffer(), time.process_time()
    for number in range(16_384):
        buffer(TokenEvent(token_ids=pack_ids([number]), logprobs=SCORES))
    buffer(TokenEvent(end=Finished(reason="stop")))
    event = buffer.get_blocking(0)
    assert unpack_ids(event.token_ids) == list(range(16_384))
    assert event.logprobs is not None
    assert len(event.logprobs.top) == 16_384 * 20 * 4
    assert event.end is not None
    assert time.process_time() - begun < 1
