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


async def _done(session: Session, command: Pause | Resume | ResetPrefixCache) -> None:
    result = await session.command(command)
    assert isinstance(result, CommandDone), f"{command} returned {result}"


@rule(_SLOW_STEPS)
async def load_is_reported(session: Session) -> None:
    """The exact load counts running and waiting requests. The reported load follows within 2 s."""
    recorders = [session.start(request([i + 2], max_tokens=150)) for i in range(6)]
    for recorder in recorders[:4]:
        await recorder.until_tokens()
    load = await session.exact_load()
    assert (load.num_running, load.num_waiting, load.num_slots) == (4, 2, 4), str(load)
    assert load.num_total_blocks == sum(g.num_blocks for g in session.engine.info.cache_groups)
    assert load.num_free_blocks + load.num_evictable_blocks < load.num_total_blocks
    await until(lambda: session.engine.load().num_running == 4, "a load report", 2.0)
    session.engine.abort([recorder.request_id for recorder in recorders])
    for recorder in recorders:
        await recorder.finished()
    await until(lambda: session.engine.load().num_running == 0, "a load report", 2.0)


@rule()
async def reset_empties_the_prefix_cache(session: Session) -> None:
    """The second request with a prompt finds cached tokens.

    After a reset the next one finds none.
    """
    prompt = [3 + i % 200 for i in range(100)]
    hits = []
    await _done(session, ResetPrefixCache())
    for _ in range(2):
        recorder = session.start(request(prompt))
        await recorder.finished()
        hits.append(recorder.num_cached_tokens)
    assert hits[0] == 0, "a prompt that is new after a reset must find nothing cached"
    assert hits[1] > 0, "the second request must find the first request's blocks"
    await _done(session, ResetPrefixCache())
    after = session.start(request(prompt))
    await after.finished()
    assert after.num_cached_tokens == 0, "a reset must empty the prefix cache"


@rule(_SLOW_STEPS)
async def pause_keep_freezes(session: Session) -> None:
    """After `Pause(mode="keep")` live requests must get no token until `Resume`.

    Afterwards they finish normally.
    """
    recorder = session.start(request(max_tokens=60))
    await recorder.until_tokens(2)
    await _done(session, Pause(mode="keep"))
    await asyncio.sleep(_SETTLE_S)
    frozen = len(recorder.tokens)
    late = session.start(request([9]))
    await asyncio.sleep(2 * _SETTLE_S)
    assert len(recorder.tokens) == frozen < 60, "a paused engine must run no step"
    assert not late.events, "a paused engine must not schedule a new request"
    assert (await session.exact_load()).is_paused
    await _done(session, Resume())
    assert (await recorder.finished()).num_output_tokens == 60
    await late.finished()


@rule(_SLOW_STEPS)
async def pause_wait_finishes_first(session: Session) -> None:
    """`Pause(mode="wait")` completes after live requests have ended.

    Later requests wait for `Resume`.
    """
    recorder = session.start(request(max_tokens=30))
    await recorder.until_tokens()
    pausing = asyncio.ensure_future(session.command(Pause(mode="wait")))
    await asyncio.sleep(_SETTLE_S / 5)
    late, ticket = session.submit(request([9]))
    dropped, dropped_ticket = session.submit(request([10]))
    dropped_ticket.abort()
    assert (await dropped.finished()).reason == "abort", (
        "a request that waits for Resume can be aborted"
    )
    assert isinstance(await pausing, CommandDone)
    assert recorder.end is not None, "the live request must end before the pause completes"
    assert len(recorder.tokens) == 30
    await asyncio.sleep(_SETTLE_S)
    assert not late.events
    await _done(session, Resume())
    await late.finished()
    assert ticket.request_id == late.request_id


@rule(_SLOW_STEPS)
async def pause_abort_ends_all(session: Session) -> None:
    """`Pause(mode="abort")` aborts every live request. Afterwards the engine is idle."""
    recorders = [session.start(request([i + 2], max_tokens=500)) for i in range(6)]
    await recorders[0].until_tokens()
    await _done(session, Pause(mode="abort"))
    for recorder in recorders:
        assert (await recorder.finished()).reason == "abort"
    await session.until_idle()
    await _done(session, Resume())
    await session.start(request()).finished()


@rule()
async def unknown_commands_are_refused(session: Session) -> None:
    """A command that `info.commands` does not list must fail as unsupported."""
    if "wake" in session.engine.info.commands:
        return
    result = await session.command(Wake())
    assert isinstance(result, CommandFailed), f"wake returned {result}"
    assert result.kind == "unsupported"


@rule(EngineNeeds(step_s=0.005, is_expendable=True))
async def drain_finishes_and_refuses(session: Session) -> None:
    """A draining engine rejects new requests with a retry time.

    `drain` completes after the last end.
    """
    recorders = [session.start(request([i + 2], max_tokens=40)) for i in range(6)]
    await recorders[0].until_tokens()
    drained = session.engine.drain()
    refused = await session.start(request([9])).rejected()
    assert refused.kind == "draining"
    assert refused.retry_after_s is not None, "a rejection while draining must carry retry_after_s"
    assert not drained.done(), "drain completed before the live requests had ended"
    await asyncio.wait_for(asyncio.wrap_future(drained), session.patience_s)
    for recorder in recorders:
        assert recorder.end is not None, "drain completed while a request was live"
        assert (await recorder.finished()).num_output_tokens == 40
    await session.until_idle()


@rule(EngineNeeds(step_s=0.005, is_expendable=True))
async def close_fails_live_requests(session: Session) -> None:
    """`close` fails every live request. Afterwards `submit` and commands raise `EngineDead`."""
    recorder = session.start(request(max_tokens=900))
    await recorder.until_tokens()
    session.engine.close()
    session.engine.close()
    await recorder.failed()
    await _expect_dead(session)


@rule(EngineNeeds(step_s=0.005, has_triggers=True, is_expendable=True))
async def dead_engine_fails_live_requests(session: Session) -> None:
    """When the engine dies, every live request fails as retryable. Afterwards `submit` raises."""
    running = [session.start(request([i + 2], max_tokens=900)) for i in range(3)]
    await running[0].until_tokens()
    deadly = session.start(request([DEAD_TOKEN, 1]))
    queued = [session.start(request([i + 2])) for i in range(3)]
    for recorder in (*running, deadly, *queued):
        failed = await recorder.failed()
        assert failed.message, "a failure must carry a message"
        assert failed.is_retryable, "a request that failed with its engine must be retryable"
    await asyncio.sleep(_SETTLE_S)
    await _expect_dead(session)


async def _expect_dead(session: Session) -> None:
    reason: str | None = None
    try:
        session.start_unchecked(request())
    except EngineDead as error:
        reason = error.reason
    assert reason is not None, "a dead engine must raise EngineDead on submit"
    assert reason, "EngineDead must carry a reason"
    result = None
    try:
        future = asyncio.wrap_future(session.engine.control(GetLoad()))
        result = await asyncio.wait_for(future, session.patience_s)
    except EngineDead:
        pass
    assert result is None, "a dead engine must raise EngineDead on commands"


@rule(EngineNeeds(step_s=0.005, has_triggers=True))
async def failed_step_fails_its_rows(session: Session) -> None:
    """A failed step fails the requests in it. The engine serves later requests."""
    before = session.start(request([2], max_tokens=200))
    await before.until_tokens()
    failed = await session.start(request([STEP_FAILED_TOKEN, 1])).failed()
    assert failed.message
    assert isinstance(await before.until_end(), Failed | Finished)
    assert (await session.start(request()).finished()).num_output_tokens == 8


@rule(EngineNeeds(step_s=0.005, has_triggers=True))
async def failed_row_fails_alone(session: Session) -> None:
    """A row whose sampling fails ends as failed. Other requests in the step finish normally."""
    neighbour = session.start(request([2], max_tokens=40))
    await neighbour.until_tokens()
    assert (await session.start(request([ROW_FAILED_TOKEN, 1])).failed()).message
    assert (await neighbour.finished()).num_output_tokens == 40


CONTROL_RULES = (
    load_is_reported,
    reset_empties_the_prefix_cache,
    pause_keep_freezes,
    pause_wait_finishes_first,
    pause_abort_ends_all,
    unknown_commands_are_refused,
    drain_finishes_and_refuses,
    close_fails_live_requests,
    dead_engine_fails_live_requests,
    failed_step_fails_its_rows,
    failed_row_fails_alone,
)
