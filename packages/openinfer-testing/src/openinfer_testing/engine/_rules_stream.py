"""Rules of streams: order, ends, cancellation, slow readers, resumption."""

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
async def one_stream_in_order(session: Session) -> None:
    """A stream holds `Scheduled` first, then all tokens, then one end with correct counts."""
    recorder = session.start(request(max_tokens=9))
    end = await recorder.finished()
    await asyncio.sleep(_SETTLE_S)
    recorder.check()
    assert recorder.events[0].scheduled is not None, "the first event must hold Scheduled"
    assert recorder.events[0].scheduled.num_prompt_tokens == 3
    assert len(recorder.tokens) == 9, "every sampled token must be delivered"
    assert (end.reason, end.num_prompt_tokens, end.num_output_tokens) == ("length", 3, 9)


@rule()
async def stop_token_is_delivered(session: Session) -> None:
    """A stop token ends the stream. It is delivered, and the end names it."""
    free = session.start(request())
    await free.finished()
    stop_id = free.tokens[4]
    recorder = session.start(request(stop_token_ids=(stop_id,)))
    end = await recorder.finished()
    length = free.tokens.index(stop_id) + 1
    assert recorder.tokens == free.tokens[:length]
    assert (end.reason, end.stop_token_id, end.num_output_tokens) == ("stop", stop_id, length)


@rule()
async def batching_changes_no_tokens(session: Session) -> None:
    """With more requests than rows, each request must get the tokens that it would get alone."""
    prompts = [[40 * i + 3, 40 * i + 4] for i in range(12)]
    alone = []
    for prompt in prompts:
        recorder = session.start(request(prompt))
        await recorder.finished()
        alone.append(recorder.tokens)
    together = [session.start(request(prompt)) for prompt in prompts]
    for recorder, tokens in zip(together, alone, strict=True):
        await recorder.finished()
        assert recorder.tokens == tokens, "a request got other tokens in a batch than alone"


@rule(EngineNeeds(num_blocks=16))
async def preempted_streams_are_whole(session: Session) -> None:
    """With too few blocks for all, streams must hold the same tokens as alone.

    The ends count the preemptions.
    """
    room = min(
        group.num_blocks * group.tokens_per_block for group in session.engine.info.cache_groups
    )
    if room >= 4 * 150:
        return
    prompts = [[200 * i + 3, 200 * i + 4] for i in range(4)]
    together = [session.start(request(prompt, max_tokens=150)) for prompt in prompts]
    ends = [await recorder.finished() for recorder in together]
    assert any(end.num_preemptions for end in ends), (
        "with too few blocks for all, at least one request must report a preemption"
    )
    for recorder, prompt in zip(together, prompts, strict=True):
        alone = session.start(request(prompt, max_tokens=150))
        assert (await alone.finished()).num_preemptions == 0
        assert recorder.tokens == alone.tokens, "a preempted request got other tokens than alone"


@rule()
async def long_prompt_in_chunks(session: Session) -> None:
    """A prompt longer than a step's token budget must be served like any other."""
    prompt = [5 + i % 300 for i in range(700)]
    recorder = session.start(request(prompt, max_tokens=5))
    end = await recorder.finished()
    assert (len(recorder.tokens), end.num_prompt_tokens) == (5, 700)


@rule(EngineNeeds(step_s=0.005, max_num_seqs=1))
async def cancel_queued(session: Session) -> None:
    """An aborted request in the queue must end at once, without tokens.

    The running request continues.
    """
    running = session.start(request(max_tokens=100))
    await running.until_tokens()
    queued, ticket = session.submit(request([9, 9]))
    ticket.abort()
    end = await queued.finished()
    assert (end.reason, queued.tokens, running.end) == ("abort", [], None)
    assert (await running.finished()).num_output_tokens == 100


@rule(EngineNeeds(step_s=0.02))
async def cancel_prefill(session: Session) -> None:
    """A request aborted during its prefill must end without tokens."""
    recorder, ticket = session.submit(request(fresh_prompt(900)))
    await asyncio.sleep(0.03)
    ticket.abort()
    assert (await recorder.finished()).reason == "abort"
    assert recorder.tokens == [], "an aborted prefill must deliver no token"


@rule(_SLOW_STEPS)
async def cancel_decode(session: Session) -> None:
    """An aborted request must end within a few steps, with the tokens so far.

    Other requests continue.
    """
    other = session.start(request([8, 8], max_tokens=120))
    recorder, ticket = session.submit(request(max_tokens=500))
    await recorder.until_tokens(3)
    ticket.abort()
    end = await recorder.finished()
    await asyncio.sleep(_SETTLE_S)
    recorder.check()
    assert (end.reason, end.num_output_tokens) == ("abort", len(recorder.tokens))
    assert len(recorder.tokens) < 100, "an abort must take effect within a few steps"
    assert (await other.finished()).num_output_tokens == 120


@rule()
async def cancel_finished(session: Session) -> None:
    """Aborting an ended or unknown request, even twice, must have no effect."""
    recorder, ticket = session.submit(request())
    await recorder.finished()
    ticket.abort()
    ticket.abort()
    session.engine.abort(("no such request",))
    await asyncio.sleep(_SETTLE_S)
    recorder.check()
    assert len(recorder.tokens) == 8


@rule()
async def cancel_at_any_moment(session: Session) -> None:
    """When aborts race with the end, each stream gets one terminal event and nothing leaks."""
    recorders = []
    for i in range(60):
        recorder, ticket = session.submit(request([i + 1, i + 2], max_tokens=1 + i % 7))
        recorders.append(recorder)
        if i % 3:
            await asyncio.sleep(0.0005 * (i % 5))
        ticket.abort()
    for recorder in recorders:
        end = await recorder.finished()
        assert end.num_output_tokens == len(recorder.tokens)


@rule()
async def id_is_free_after_the_end(session: Session) -> None:
    """The id of an ended request may be used again."""
    for _ in range(3):
        end = await session.start(request(request_id="again")).finished()
        assert end.reason == "length"


@rule(_SLOW_STEPS)
async def leaving_a_stream_aborts(session: Session) -> None:
    """Closing the iterator of `stream` early must abort the request."""
    events = stream(session.engine, request(max_tokens=900))
    async for _ in events:
        break
    await events.aclose()  # type: ignore[attr-defined]
    await session.until_idle()


async def _unread_beside_read(session: Session, seconds: float) -> None:
    """Stops one reader for `seconds`.

    Other requests must finish meanwhile, and the stopped reader must lose no token.
    """
    unread = _Unread(asyncio.get_running_loop())
    slow = request([20, 21], max_tokens=300)
    session.engine.submit(slow, unread)
    give_up_at = asyncio.get_running_loop().time() + seconds
    num_read = 0
    while num_read < 3 or asyncio.get_running_loop().time() < give_up_at:
        fast = session.start(request([30 + num_read % 50], max_tokens=20))
        await fast.finished()
        num_read += 1
    unread.is_reading = True
    tokens: list[int] = []
    end = None
    while end is None:
        event = await asyncio.wait_for(unread.buffer.get(), session.patience_s)
        tokens += unpack_ids(event.token_ids)
        end = event.end
    assert isinstance(end, Finished), f"the unread stream ended with {end}"
    assert len(tokens) == end.num_output_tokens == 300, "an unread stream must lose no token"
    again = session.start(request([20, 21], max_tokens=300))
    await again.finished()
    assert tokens == again.tokens, "an unread stream must hold the same tokens as a read one"


class _Unread:
    """Event buffer whose reader has stopped."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.buffer = EventBuffer(loop)
        self.is_reading = False

    def __call__(self, event: TokenEvent, /) -> None:
        self.buffer(event)


@rule(EngineNeeds(step_s=0.001))
async def slow_reader_delays_no_other(session: Session) -> None:
    """A reader that stops for 0.2 s must not delay other streams, and must lose no token."""
    await _unread_beside_read(session, 0.2)


@rule(EngineNeeds(step_s=0.001))
async def reader_stops_for_ten_seconds(session: Session) -> None:
    """A reader that stops for 10 s must not delay other streams, and must lose no token."""
    await _unread_beside_read(session, 10.0)


async def _resumed(session: Session, seed: int | None) -> tuple[Recorder, Recorder]:
    whole = session.start(request(max_tokens=12, seed=seed))
    await whole.finished()
    known = whole.tokens[:5]
    rest = session.start(request([5, 6, 7, *known], num_output_prefix=5, max_tokens=12, seed=seed))
    await rest.finished()
    return whole, rest


@rule()
async def resume_prefix_counts_as_output(session: Session) -> None:
    """Output tokens that a request brings (`num_output_prefix`) count against `max_tokens`."""
    whole, rest = await _resumed(session, None)
    assert rest.tokens == whole.tokens[5:], "a resumed request must continue with the next token"
    end = await rest.finished()
    assert (end.num_prompt_tokens, end.num_output_tokens) == (8, 12), (
        "num_output_tokens must include the prefix"
    )


@rule()
async def resume_prefix_keeps_seeds(session: Session) -> None:
    """A seeded request must draw the same tokens after a resumption. Another seed draws others."""
    whole, rest = await _resumed(session, 7)
    assert rest.tokens == whole.tokens[5:], "draws must depend on seed and position alone"
    other = session.start(request(max_tokens=12, seed=8))
    await other.finished()
    assert other.tokens != whole.tokens, "another seed must draw other tokens"


@rule(_SLOW_STEPS)
async def many_streams_at_once(session: Session) -> None:
    """With 60 requests over 4 rows, every request must end with its own length."""
    recorders = [session.start(request([i + 2], max_tokens=1 + i % 9)) for i in range(60)]
    for i, recorder in enumerate(recorders):
        end = await recorder.finished()
        assert end.num_output_tokens == len(recorder.tokens) == 1 + i % 9
    await until(lambda: session.engine.load().num_running == 0, "a load report", session.patience_s)


@rule()
async def logprobs_match_tokens(session: Session) -> None:
    """If a request asks for logprobs, every delivered token must come with its own."""
    if "logprobs" not in session.engine.info.honoured:
        return
    recorder = session.start(replace(request(), logprobs=LogprobOptions(num_top=2)))
    await recorder.finished()
    for event in recorder.events:
        if event.token_ids:
            assert event.logprobs is not None, "an event with tokens must hold their logprobs"
            sizes = (len(event.logprobs.sampled), len(event.logprobs.ranks))
            assert sizes == (len(event.token_ids),) * 2, (
                "an event must hold one logprob and one rank for each token"
            )
            assert len(event.logprobs.top_ids) == 2 * len(event.token_ids)


@rule(_SLOW_STEPS)
async def deadline_fails_the_request(session: Session) -> None:
    """A request that is still running at its deadline must fail, within a few steps."""
    if "deadline" not in session.engine.info.honoured:
        return
    late = replace(request(max_tokens=400), deadline=time.monotonic() + 0.1)
    failed = await session.start(late).failed()
    assert failed.message
    assert failed.num_output_tokens < 100


STREAM_RULES = (
    one_stream_in_order,
    stop_token_is_delivered,
    batching_changes_no_tokens,
    preempted_streams_are_whole,
    long_prompt_in_chunks,
    cancel_queued,
    cancel_prefill,
    cancel_decode,
    cancel_finished,
    cancel_at_any_moment,
    id_is_free_after_the_end,
    leaving_a_stream_aborts,
    slow_reader_delays_no_other,
    resume_prefix_counts_as_output,
    resume_prefix_keeps_seeds,
    many_streams_at_once,
    logprobs_match_tokens,
    deadline_fails_the_request,
)
SLOW_STREAM_RULES = (reader_stops_for_ten_seconds,)
