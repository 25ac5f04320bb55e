"""Rules of streams: order, ends, cancellation, readers, resumption."""

import asyncio
import time

from msgspec.structs import replace

from openinfer_contract import EventBuffer, Finished, LogprobOptions, TokenEvent, stream, unpack_ids
from openinfer_testing.engine._harness import (
    EngineNeeds,
    Recorder,
    Session,
    fresh_prompt,
    request,
    until,
)
from openinfer_testing.engine._rule import rule

_SLOW_STEPS = EngineNeeds(step_s=0.005)
_SETTLE_S = 0.05


@rule()
async def one_stream_in_order(one: Session) -> None:
    """Scheduled, tokens, exactly one end, honest counts, and nothing after it."""
    recorder = one.start(request(max_tokens=9))
    end = await recorder.finished()
    await asyncio.sleep(_SETTLE_S)
    recorder.check()
    assert recorder.events[0].scheduled is not None, "the first event says Scheduled"
    assert recorder.events[0].scheduled.num_prompt_tokens == 3
    assert len(recorder.tokens) == 9, "every sampled token is delivered"
    assert (end.reason, end.num_prompt_tokens, end.num_output_tokens) == ("length", 3, 9)


@rule()
async def stop_token_is_delivered(one: Session) -> None:
    """A stop id ends the stream, is delivered, and named."""
    free = one.start(request())
    await free.finished()
    stop_id = free.tokens[4]
    recorder = one.start(request(stop_token_ids=(stop_id,)))
    end = await recorder.finished()
    length = free.tokens.index(stop_id) + 1
    assert recorder.tokens == free.tokens[:length]
    assert (end.reason, end.stop_token_id, end.num_output_tokens) == ("stop", stop_id, length)


@rule()
async def together_as_alone(one: Session) -> None:
    """More requests than rows: each gets what it would get alone."""
    prompts = [[40 * i + 3, 40 * i + 4] for i in range(12)]
    alone = []
    for prompt in prompts:
        recorder = one.start(request(prompt))
        await recorder.finished()
        alone.append(recorder.tokens)
    together = [one.start(request(prompt)) for prompt in prompts]
    for recorder, tokens in zip(together, alone, strict=True):
        await recorder.finished()
        assert recorder.tokens == tokens, "a stream holds other tokens than alone"


@rule(EngineNeeds(num_blocks=16))
async def preempted_streams_are_whole(one: Session) -> None:
    """Too few blocks for all: streams are as they would be alone, ends count preemptions."""
    room = min(group.num_blocks * group.tokens_per_block for group in one.engine.info.cache_groups)
    if room >= 4 * 150:
        return
    prompts = [[200 * i + 3, 200 * i + 4] for i in range(4)]
    together = [one.start(request(prompt, max_tokens=150)) for prompt in prompts]
    ends = [await recorder.finished() for recorder in together]
    assert any(end.num_preemptions for end in ends), "the blocks were too few for all"
    for recorder, prompt in zip(together, prompts, strict=True):
        alone = one.start(request(prompt, max_tokens=150))
        assert (await alone.finished()).num_preemptions == 0
        assert recorder.tokens == alone.tokens, "a preempted stream holds other tokens than alone"


@rule()
async def long_prompt_in_chunks(one: Session) -> None:
    """A prompt longer than a step is served like any other."""
    prompt = [5 + i % 300 for i in range(700)]
    recorder = one.start(request(prompt, max_tokens=5))
    end = await recorder.finished()
    assert (len(recorder.tokens), end.num_prompt_tokens) == (5, 700)


@rule(EngineNeeds(step_s=0.005, max_num_seqs=1))
async def cancel_queued(one: Session) -> None:
    """A queued request ends at once when aborted; the running one is not touched."""
    running = one.start(request(max_tokens=100))
    await running.until_tokens()
    queued, ticket = one.submit(request([9, 9]))
    ticket.abort()
    end = await queued.finished()
    assert (end.reason, queued.tokens, running.end) == ("abort", [], None)
    assert (await running.finished()).num_output_tokens == 100


@rule(EngineNeeds(step_s=0.02))
async def cancel_prefill(one: Session) -> None:
    """A request aborted while its prompt is forwarded ends without tokens."""
    recorder, ticket = one.submit(request(fresh_prompt(900)))
    await asyncio.sleep(0.03)
    ticket.abort()
    assert (await recorder.finished()).reason == "abort"
    assert recorder.tokens == [], "an aborted prefill samples nothing"


@rule(_SLOW_STEPS)
async def cancel_decode(one: Session) -> None:
    """A decoding request ends soon after the abort, with what it had; others go on."""
    other = one.start(request([8, 8], max_tokens=120))
    recorder, ticket = one.submit(request(max_tokens=500))
    await recorder.until_tokens(3)
    ticket.abort()
    end = await recorder.finished()
    await asyncio.sleep(_SETTLE_S)
    recorder.check()
    assert (end.reason, end.num_output_tokens) == ("abort", len(recorder.tokens))
    assert len(recorder.tokens) < 100, "an abort takes effect within a few steps"
    assert (await other.finished()).num_output_tokens == 120


@rule()
async def cancel_finished(one: Session) -> None:
    """Aborting an ended or unknown request does nothing, twice neither."""
    recorder, ticket = one.submit(request())
    await recorder.finished()
    ticket.abort()
    ticket.abort()
    one.engine.abort(("no such request",))
    await asyncio.sleep(_SETTLE_S)
    recorder.check()
    assert len(recorder.tokens) == 8


@rule()
async def cancel_at_any_moment(one: Session) -> None:
    """Aborts that race with the end: one terminal each, nothing leaks."""
    recorders = []
    for i in range(60):
        recorder, ticket = one.submit(request([i + 1, i + 2], max_tokens=1 + i % 7))
        recorders.append(recorder)
        if i % 3:
            await asyncio.sleep(0.0005 * (i % 5))
        ticket.abort()
    for recorder in recorders:
        end = await recorder.finished()
        assert end.num_output_tokens == len(recorder.tokens)


@rule()
async def id_is_free_after_the_end(one: Session) -> None:
    """An ended request's id may be used again."""
    for _ in range(3):
        end = await one.start(request(request_id="again")).finished()
        assert end.reason == "length"


@rule(_SLOW_STEPS)
async def leaving_a_stream_aborts(one: Session) -> None:
    """Leaving `stream` early ends the request in the engine."""
    events = stream(one.engine, request(max_tokens=900))
    async for _ in events:
        break
    await events.aclose()  # type: ignore[attr-defined]
    await one.until_idle()


async def _unread_beside_read(one: Session, seconds: float) -> None:
    """One reader stops, its neighbours do not notice, and it loses nothing."""
    unread = _Unread(asyncio.get_running_loop())
    slow = request([20, 21], max_tokens=300)
    one.engine.submit(slow, unread)
    give_up_at = asyncio.get_running_loop().time() + seconds
    num_read = 0
    while num_read < 3 or asyncio.get_running_loop().time() < give_up_at:
        fast = one.start(request([30 + num_read % 50], max_tokens=20))
        await fast.finished()
        num_read += 1
    unread.is_reading = True
    tokens: list[int] = []
    end = None
    while end is None:
        event = await asyncio.wait_for(unread.buffer.get(), one.patience_s)
        tokens += unpack_ids(event.token_ids)
        end = event.end
    assert isinstance(end, Finished), f"the unread stream ended with {end}"
    assert len(tokens) == end.num_output_tokens == 300, "an unread stream loses nothing"
    again = one.start(request([20, 21], max_tokens=300))
    await again.finished()
    assert tokens == again.tokens, "an unread stream holds other tokens than a read one"


class _Unread:
    """An event buffer that nobody reads for a while."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.buffer = EventBuffer(loop)
        self.is_reading = False

    def __call__(self, event: TokenEvent, /) -> None:
        self.buffer(event)


@rule(EngineNeeds(step_s=0.001))
async def slow_reader_costs_itself(one: Session) -> None:
    """A reader that stops costs nobody else anything, and loses nothing."""
    await _unread_beside_read(one, 0.2)


@rule(EngineNeeds(step_s=0.001))
async def reader_stops_for_ten_seconds(one: Session) -> None:
    """The same for ten honest seconds."""
    await _unread_beside_read(one, 10.0)


async def _resumed(one: Session, seed: int | None) -> tuple[Recorder, Recorder]:
    whole = one.start(request(max_tokens=12, seed=seed))
    await whole.finished()
    known = whole.tokens[:5]
    rest = one.start(request([5, 6, 7, *known], num_output_prefix=5, max_tokens=12, seed=seed))
    await rest.finished()
    return whole, rest


@rule()
async def resume_prefix_counts(one: Session) -> None:
    """Output that a request brings along counts against max_tokens."""
    whole, rest = await _resumed(one, None)
    assert rest.tokens == whole.tokens[5:], "a resumed request goes on where it was"
    end = await rest.finished()
    assert (end.num_prompt_tokens, end.num_output_tokens) == (8, 12), "the prefix is output too"


@rule()
async def resume_prefix_keeps_seeds(one: Session) -> None:
    """A seeded request draws the same tokens after a resumption, and with another seed others."""
    whole, rest = await _resumed(one, 7)
    assert rest.tokens == whole.tokens[5:], "draws depend on (seed, position) alone"
    other = one.start(request(max_tokens=12, seed=8))
    await other.finished()
    assert other.tokens != whole.tokens, "the seed matters"


@rule(_SLOW_STEPS)
async def many_streams_at_once(one: Session) -> None:
    """Sixty requests over four rows: all end, each with its own length."""
    recorders = [one.start(request([i + 2], max_tokens=1 + i % 9)) for i in range(60)]
    for i, recorder in enumerate(recorders):
        end = await recorder.finished()
        assert end.num_output_tokens == len(recorder.tokens) == 1 + i % 9
    await until(lambda: one.engine.load().num_running == 0, "a load report", one.patience_s)


@rule()
async def logprobs_match_tokens(one: Session) -> None:
    """With logprobs asked for, every token comes with its own."""
    if "logprobs" not in one.engine.info.honoured:
        return
    recorder = one.start(replace(request(), logprobs=LogprobOptions(num_top=2)))
    await recorder.finished()
    for event in recorder.events:
        if event.token_ids:
            assert event.logprobs is not None, "a token without logprobs"
            sizes = (len(event.logprobs.sampled), len(event.logprobs.ranks))
            assert sizes == (len(event.token_ids),) * 2, "not one logprob and rank a token"
            assert len(event.logprobs.top_ids) == 2 * len(event.token_ids)


@rule(_SLOW_STEPS)
async def deadline_ends_it(one: Session) -> None:
    """A request that is not done at its deadline fails; it costs nothing afterwards."""
    if "deadline" not in one.engine.info.honoured:
        return
    late = replace(request(max_tokens=400), deadline=time.monotonic() + 0.1)
    failed = await one.start(late).failed()
    assert failed.message
    assert failed.num_output_tokens < 100


STREAM_RULES = (
    one_stream_in_order,
    stop_token_is_delivered,
    together_as_alone,
    preempted_streams_are_whole,
    long_prompt_in_chunks,
    cancel_queued,
    cancel_prefill,
    cancel_decode,
    cancel_finished,
    cancel_at_any_moment,
    id_is_free_after_the_end,
    leaving_a_stream_aborts,
    slow_reader_costs_itself,
    resume_prefix_counts,
    resume_prefix_keeps_seeds,
    many_streams_at_once,
    logprobs_match_tokens,
    deadline_ends_it,
)
SLOW_STREAM_RULES = (reader_stops_for_ten_seconds,)
