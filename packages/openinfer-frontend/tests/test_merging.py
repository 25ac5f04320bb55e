"""Merging the output of slow readers and whole responses copies little."""

import asyncio
import time

import pytest

from openinfer_contract import Finished, TokenEvent, TokenLogprobs, pack_ids, unpack_ids
from openinfer_frontend.generation._event_fan_in import EventFanIn
from openinfer_frontend.generation._generation import Delta
from openinfer_frontend.generation._text_work import TextWork
from openinfer_frontend.protocols.openai._choices_format import ChoiceResult

SCORES = TokenLogprobs(
    sampled=bytes(4), ranks=bytes(4), num_top=20, top_ids=bytes(80), top=bytes(80)
)


@pytest.mark.timed
def test_a_slow_reader_finds_the_scores_merged():
    async def read(count):
        fan_in = EventFanIn(asyncio.get_running_loop())
        sink, begun = fan_in.sink(0), time.process_time()
        for number in range(count):
            sink(TokenEvent(token_ids=pack_ids([number]), logprobs=SCORES))
        sink(TokenEvent(end=Finished(reason="stop")))
        (event,) = (await fan_in.get()).values()
        return event, time.process_time() - begun

    event, seconds = asyncio.run(read(16_384))
    assert unpack_ids(event.token_ids) == list(range(16_384))
    assert len(event.logprobs.top) == 16_384 * 20 * 4
    assert event.end is not None
    assert seconds < 1


@pytest.mark.timed
def test_a_whole_choice_merges_its_scores_once():
    result = ChoiceResult()
    begun = time.process_time()
    for number in range(16_384):
        result.add(Delta(index=0, text="x", token_ids=[number], logprobs=SCORES))
    assert len(result.logprobs.top) == 16_384 * 20 * 4
    assert time.process_time() - begun < 1


@pytest.mark.parametrize(("num_tokens", "num_long"), [(1000, 0), (1100, 1)])
@pytest.mark.parametrize("is_scored", [True, False])
def test_many_scores_are_spelled_in_a_thread(
    fakes, make_app, client_of, monkeypatch, num_tokens, num_long, is_scored
):
    ran, run_long = [], TextWork.run_long

    def counted(self, work):
        ran.append(work)
        return run_long(self, work)

    monkeypatch.setattr(TextWork, "run_long", counted)
    engine = fakes.FakeEngine(max_model_len=4096)
    engine.script = lambda _: ["x" * num_tokens, Finished(reason="stop")]
    fields = {"logprobs": 1} if is_scored else {}
    body = client_of(make_app(engine)).complete("Hi", max_tokens=2000, **fields)
    assert len(body["choices"][0]["text"]) == num_tokens
    assert len(ran) == num_long * is_scored
