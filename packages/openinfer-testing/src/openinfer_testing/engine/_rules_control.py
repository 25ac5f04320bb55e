"""Rules of commands, draining and death."""

import asyncio

from openinfer_contract import (
    CommandDone,
    CommandFailed,
    EngineDead,
    Failed,
    Finished,
    GetLoad,
    Pause,
    ResetPrefixCache,
    Resume,
    Wake,
)
from openinfer_testing.engine._harness import (
    DEAD_TOKEN,
    ROW_FAILED_TOKEN,
    STEP_FAILED_TOKEN,
    EngineNeeds,
    Session,
    request,
    until,
)
from openinfer_testing.engine._rule import rule

_SLOW_STEPS = EngineNeeds(step_s=0.005)
_SETTLE_S = 0.05


async def _done(one: Session, command: Pause | Resume | ResetPrefixCache) -> None:
    result = await one.command(command)
    assert isinstance(result, CommandDone), f"{command} was answered with {result}"


@rule(_SLOW_STEPS)
async def load_tells_the_truth(one: Session) -> None:
    """The exact load counts running and waiting; the reported one follows within a second."""
    recorders = [one.start(request([i + 2], max_tokens=150)) for i in range(6)]
    for recorder in recorders[:4]:
        await recorder.until_tokens()
    load = await one.exact_load()
    assert (load.num_running, load.num_waiting, load.num_slots) == (4, 2, 4), str(load)
    assert load.num_total_blocks == sum(g.num_blocks for g in one.engine.info.cache_groups)
    assert load.num_free_blocks + load.num_evictable_blocks < load.num_total_blocks
    await until(lambda: one.engine.load().num_running == 4, "a load report", 2.0)
    one.engine.abort([recorder.request_id for recorder in recorders])
    for recorder in recorders:
        await recorder.finished()
    await until(lambda: one.engine.load().num_running == 0, "a load report", 2.0)


@rule()
async def reset_forgets_the_cache(one: Session) -> None:
    """A prompt seen before is found cached, and not after a reset."""
    prompt = [3 + i % 200 for i in range(100)]
    hits = []
    await _done(one, ResetPrefixCache())
    for _ in range(2):
        recorder = one.start(request(prompt))
        await recorder.finished()
        hits.append(recorder.num_cached_tokens)
    assert hits[0] == 0, "the first of its kind finds nothing"
    assert hits[1] > 0, "the second finds the first one's blocks"
    await _done(one, ResetPrefixCache())
    after = one.start(request(prompt))
    await after.finished()
    assert after.num_cached_tokens == 0, "after a reset nothing is cached"


@rule(_SLOW_STEPS)
async def pause_keep_freezes(one: Session) -> None:
    """Kept requests make no step until resumed, then end as if nothing had been."""
    recorder = one.start(request(max_tokens=60))
    await recorder.until_tokens(2)
    await _done(one, Pause(mode="keep"))
    await asyncio.sleep(_SETTLE_S)
    frozen = len(recorder.tokens)
    late = one.start(request([9]))
    await asyncio.sleep(2 * _SETTLE_S)
    assert len(recorder.tokens) == frozen < 60, "a paused engine makes no step"
    assert not late.events, "nor does it schedule"
    assert (await one.exact_load()).is_paused
    await _done(one, Resume())
    assert (await recorder.finished()).num_output_tokens == 60
    await late.finished()


@rule(_SLOW_STEPS)
async def pause_wait_finishes_first(one: Session) -> None:
    """Live requests end first; later ones wait for the resumption."""
    recorder = one.start(request(max_tokens=30))
    await recorder.until_tokens()
    pausing = asyncio.ensure_future(one.command(Pause(mode="wait")))
    await asyncio.sleep(_SETTLE_S / 5)
    late, ticket = one.submit(request([9]))
    dropped, dropped_ticket = one.submit(request([10]))
    dropped_ticket.abort()
    assert (await dropped.finished()).reason == "abort", "a held request can be aborted"
    assert isinstance(await pausing, CommandDone)
    assert recorder.end is not None, "the live request ends before the pause"
    assert len(recorder.tokens) == 30
    await asyncio.sleep(_SETTLE_S)
    assert not late.events
    await _done(one, Resume())
    await late.finished()
    assert ticket.request_id == late.request_id


@rule(_SLOW_STEPS)
async def pause_abort_ends_all(one: Session) -> None:
    """Live requests are aborted; afterwards nothing is held."""
    recorders = [one.start(request([i + 2], max_tokens=500)) for i in range(6)]
    await recorders[0].until_tokens()
    await _done(one, Pause(mode="abort"))
    for recorder in recorders:
        assert (await recorder.finished()).reason == "abort"
    await one.until_idle()
    await _done(one, Resume())
    await one.start(request()).finished()


@rule()
async def unknown_commands_are_refused(one: Session) -> None:
    """A command the engine does not name is answered as unsupported."""
    if "wake" in one.engine.info.commands:
        return
    result = await one.command(Wake())
    assert isinstance(result, CommandFailed), f"wake was answered with {result}"
    assert result.kind == "unsupported"


@rule(EngineNeeds(step_s=0.005, is_expendable=True))
async def drain_finishes_and_refuses(one: Session) -> None:
    """A draining engine refuses new requests, ends the live ones, then says so."""
    recorders = [one.start(request([i + 2], max_tokens=40)) for i in range(6)]
    await recorders[0].until_tokens()
    drained = one.engine.drain()
    refused = await one.start(request([9])).rejected()
    assert refused.kind == "draining"
    assert refused.retry_after_s is not None, "a draining engine says when to come back"
    assert not drained.done(), "drained before the live requests have ended"
    await asyncio.wait_for(asyncio.wrap_future(drained), one.patience_s)
    for recorder in recorders:
        assert recorder.end is not None, "drained with a live request"
        assert (await recorder.finished()).num_output_tokens == 40
    await one.until_idle()


@rule(EngineNeeds(step_s=0.005, is_expendable=True))
async def close_fails_what_is_live(one: Session) -> None:
    """Closing ends the engine: live requests fail, later ones are not taken."""
    recorder = one.start(request(max_tokens=900))
    await recorder.until_tokens()
    one.engine.close()
    one.engine.close()
    await recorder.failed()
    await _expect_dead(one)


@rule(EngineNeeds(step_s=0.005, has_triggers=True, is_expendable=True))
async def dead_engine_fails_all(one: Session) -> None:
    """When the engine dies every live request fails, retryably, and no later one is taken."""
    running = [one.start(request([i + 2], max_tokens=900)) for i in range(3)]
    await running[0].until_tokens()
    deadly = one.start(request([DEAD_TOKEN, 1]))
    queued = [one.start(request([i + 2])) for i in range(3)]
    for recorder in (*running, deadly, *queued):
        failed = await recorder.failed()
        assert failed.message, "a failure says why"
        assert failed.is_retryable, "another engine may serve it"
    await asyncio.sleep(_SETTLE_S)
    await _expect_dead(one)


async def _expect_dead(one: Session) -> None:
    reason: str | None = None
    try:
        one.start_unchecked(request())
    except EngineDead as error:
        reason = error.reason
    assert reason is not None, "a dead engine takes requests"
    assert reason, "a dead engine does not say why"
    answer = None
    try:
        future = asyncio.wrap_future(one.engine.control(GetLoad()))
        answer = await asyncio.wait_for(future, one.patience_s)
    except EngineDead:
        pass
    assert answer is None, "a dead engine answers commands"


@rule(EngineNeeds(step_s=0.005, has_triggers=True))
async def failed_step_fails_its_rows(one: Session) -> None:
    """A failed step ends the requests it touched; the engine goes on."""
    before = one.start(request([2], max_tokens=200))
    await before.until_tokens()
    failed = await one.start(request([STEP_FAILED_TOKEN, 1])).failed()
    assert failed.message
    assert isinstance(await before.until_end(), Failed | Finished)
    assert (await one.start(request()).finished()).num_output_tokens == 8


@rule(EngineNeeds(step_s=0.005, has_triggers=True))
async def failed_row_fails_alone(one: Session) -> None:
    """A row that cannot be sampled fails; its neighbours do not notice."""
    neighbour = one.start(request([2], max_tokens=40))
    await neighbour.until_tokens()
    assert (await one.start(request([ROW_FAILED_TOKEN, 1])).failed()).message
    assert (await neighbour.finished()).num_output_tokens == 40


CONTROL_RULES = (
    load_tells_the_truth,
    reset_forgets_the_cache,
    pause_keep_freezes,
    pause_wait_finishes_first,
    pause_abort_ends_all,
    unknown_commands_are_refused,
    drain_finishes_and_refuses,
    close_fails_what_is_live,
    dead_engine_fails_all,
    failed_step_fails_its_rows,
    failed_row_fails_alone,
)
