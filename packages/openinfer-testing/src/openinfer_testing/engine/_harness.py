"""Engine needs, recorders and sessions: the tools that rules are written with."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from random import Random

from openinfer_contract import (
    Command,
    CommandDone,
    CommandResult,
    End,
    EngineHandle,
    Failed,
    Finished,
    GenerateRequest,
    GetLoad,
    Load,
    Rejected,
    Sampling,
    StopRules,
    StreamOrderError,
    StreamState,
    Ticket,
    TokenEvent,
    pack_ids,
    unpack_ids,
)

PATIENCE_S = 10.0
"""Default timeout in seconds of everything that a rule waits for."""

ROW_FAILED_TOKEN, STEP_FAILED_TOKEN, DEAD_TOKEN = 991, 992, 993
"""First tokens of the prompts that cause failures if `EngineNeeds.has_triggers`."""

_ids = itertools.count()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineNeeds:
    """Properties of the engine that a rule requires."""

    step_s: float = 0.0
    """Minimum duration of a step in seconds. 0 if it does not matter."""
    max_num_seqs: int = 4
    max_queued_requests: int = 64
    max_queued_tokens: int = 100_000
    """Upper bound of the prompt tokens of queued requests."""
    max_model_len: int = 1024
    num_blocks: int = 256
    """Number of blocks of 16 tokens in the cache."""
    is_expendable: bool = False
    """Whether the rule leaves the engine unusable, so that it needs an engine of its own."""
    has_triggers: bool = False
    """Whether prompts that begin with the trigger tokens must make a row, a step or the engine
    fail.
    """


EngineFactory = Callable[[EngineNeeds], AbstractAsyncContextManager[EngineHandle]]
"""Provides an idle engine, new or shared, inside a running event loop."""


class Recorder:
    """Sink that records every event and checks the order of the stream.

    Args:
        request_id: Id of the request whose events it receives.
        patience_s: Timeout in seconds of each wait.

    Attributes:
        request_id: Id of the request whose events it receives.
        events: Events in order of arrival.
        is_reading: Always True. Only the broken engine that stalls on slow readers looks at it.
    """

    def __init__(self, request_id: str, patience_s: float = PATIENCE_S) -> None:
        self.request_id = request_id
        self.events: list[TokenEvent] = []
        self.is_reading = True
        self._patience_s = patience_s
        self._state = StreamState(request_id)
        self._violation: StreamOrderError | None = None

    def __call__(self, event: TokenEvent, /) -> None:
        try:
            self._state.advance(event)
        except StreamOrderError as error:
            self._violation = self._violation or error
        self.events.append(event)

    @property
    def tokens(self) -> list[int]:
        """Output tokens received so far."""
        return unpack_ids(b"".join(event.token_ids for event in list(self.events)))

    @property
    def num_cached_tokens(self) -> int:
        """Number of cached prompt tokens, as `Scheduled` reports it."""
        scheduled = [event.scheduled for event in self.events if event.scheduled is not None]
        return sum(count for event in scheduled for _, count in event.cached)

    @property
    def end(self) -> End | None:
        """The terminal event, or None before it has arrived."""
        return next((event.end for event in list(self.events) if event.end is not None), None)

    def check(self) -> None:
        """Raises AssertionError for the first event that violated the order of the stream."""
        if self._violation is not None:
            raise AssertionError(str(self._violation)) from self._violation

    async def until_tokens(self, num: int = 1) -> None:
        """Waits until `num` tokens have arrived."""
        await until(
            lambda: len(self.tokens) >= num or self.end is not None, "tokens", self._patience_s
        )
        assert len(self.tokens) >= num, f"the stream ended with {self.end} before {num} tokens"

    async def until_end(self) -> End:
        """Waits for the terminal event and returns it."""
        await until(lambda: self.end is not None, "the terminal event", self._patience_s)
        self.check()
        assert self.end is not None
        return self.end

    async def finished(self) -> Finished:
        """Waits for the terminal event, which must be `Finished`."""
        end = await self.until_end()
        assert isinstance(end, Finished), f"expected Finished, got {end}"
        return end

    async def failed(self) -> Failed:
        """Waits for the terminal event, which must be `Failed`."""
        end = await self.until_end()
        assert isinstance(end, Failed), f"expected Failed, got {end}"
        return end

    async def rejected(self) -> Rejected:
        """Waits for the terminal event, which must be `Rejected` and carry a message."""
        end = await self.until_end()
        assert isinstance(end, Rejected), f"expected Rejected, got {end}"
        assert end.message, "a rejection must carry a message"
        return end


class Session:
    """An engine under test and the streams of all requests submitted to it.

    Args:
        engine: The handle of the engine.
        patience_s: Timeout in seconds of each wait.
    """

    def __init__(self, engine: EngineHandle, patience_s: float) -> None:
        self.engine = engine
        self.patience_s = patience_s
        self._recorders: list[Recorder] = []

    def submit(self, request: GenerateRequest) -> tuple[Recorder, Ticket]:
        """Submits a request with a recorder as its sink."""
        recorder = Recorder(request.request_id, self.patience_s)
        self._recorders.append(recorder)
        return recorder, self.engine.submit(request, recorder)

    def start(self, request: GenerateRequest) -> Recorder:
        """Submits a request and returns its recorder."""
        return self.submit(request)[0]

    def start_unchecked(self, request: GenerateRequest) -> None:
        """Submits a request whose stream does not have to end."""
        self.engine.submit(request, Recorder(request.request_id))

    async def command(self, command: Command) -> CommandResult:
        """Runs a command and returns its result."""
        future = asyncio.wrap_future(self.engine.control(command))
        return await asyncio.wait_for(future, self.patience_s)

    async def exact_load(self) -> Load:
        """Returns the load between two steps, by `GetLoad`."""
        result = await self.command(GetLoad())
        assert isinstance(result, CommandDone), f"get_load returned {result}"
        assert result.load is not None, "the result of get_load must hold the load"
        return result.load

    def check_streams(self) -> None:
        """Checks that every stream was in order and has ended."""
        for recorder in self._recorders:
            recorder.check()
            assert recorder.end is not None, "every stream must end with a terminal event"

    async def until_idle(self) -> None:
        """Waits until the engine is idle.

        An idle engine holds no slot, pin or lease, and every block is free or evictable.
        """
        give_up_at = asyncio.get_running_loop().time() + self.patience_s / 2
        while not (load := await self.exact_load()).is_idle:
            is_late = asyncio.get_running_loop().time() > give_up_at
            assert not is_late, f"an engine whose streams have all ended must be idle: {load}"
            await asyncio.sleep(0.01)


@asynccontextmanager
async def session(
    factory: EngineFactory, needs: EngineNeeds, patience_s: float
) -> AsyncIterator[Session]:
    """Opens an engine for one rule.

    At the end every stream must have ended and the engine be idle.
    """
    async with factory(needs) as engine:
        opened = Session(engine, patience_s)
        yield opened
        if not needs.is_expendable:
            await asyncio.sleep(0.02)
            await opened.until_idle()
        opened.check_streams()


async def until(condition: Callable[[], bool], what: str, patience_s: float) -> None:
    """Waits until a condition is true.

    Raises:
        AssertionError: The condition is still false after `patience_s` seconds.
    """
    give_up_at = asyncio.get_running_loop().time() + patience_s
    while not condition():
        late = asyncio.get_running_loop().time() > give_up_at
        assert not late, f"{what} did not come within {patience_s:.0f} s"
        await asyncio.sleep(0.001)


def fresh_prompt(num_tokens: int) -> list[int]:
    """Returns a random prompt that no engine can have cached."""
    random = Random(next(_ids) + 1_000_003 * time.time_ns())
    return [random.randrange(1, 500) for _ in range(num_tokens)]


def request(
    prompt: Iterable[int] = (5, 6, 7),
    *,
    max_tokens: int = 8,
    num_output_prefix: int = 0,
    seed: int | None = None,
    stop_token_ids: tuple[int, ...] = (),
    request_id: str | None = None,
) -> GenerateRequest:
    """Makes a request that runs to `max_tokens`: EOS is ignored; greedy if there is no seed."""
    return GenerateRequest(
        request_id=request_id or f"r{next(_ids)}",
        prompt_token_ids=pack_ids(prompt),
        num_output_prefix=num_output_prefix,
        sampling=Sampling(temperature=0.0) if seed is None else Sampling(seed=seed),
        stop=StopRules(max_tokens=max_tokens, ignore_eos=True, stop_token_ids=stop_token_ids),
    )
