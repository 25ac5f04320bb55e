"""What the rules are written with: needs, recorders, sessions."""

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
"""Nothing a rule waits for takes this long on a conforming engine."""

ROW_FAILED_TOKEN, STEP_FAILED_TOKEN, DEAD_TOKEN = 991, 992, 993
"""First tokens of prompts that bring disaster, where `EngineNeeds.has_triggers`."""

_ids = itertools.count()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineNeeds:
    """The engine a rule wants to meet."""

    step_s: float = 0.0
    """Seconds a step takes at least; 0 where it does not matter."""
    max_num_seqs: int = 4
    max_queued_requests: int = 64
    max_queued_tokens: int = 100_000
    """Of the prompts that wait."""
    max_model_len: int = 1024
    num_blocks: int = 256
    """Blocks of 16 tokens in the cache."""
    is_expendable: bool = False
    """The rule leaves the engine unusable; it needs one for itself."""
    has_triggers: bool = False
    """The prompts that begin with the trigger tokens above fail in those ways."""


EngineFactory = Callable[[EngineNeeds], AbstractAsyncContextManager[EngineHandle]]
"""Makes, or lends, an idle engine inside a running event loop."""


class Recorder:
    """A sink that remembers every event and holds the stream to its grammar.

    Attributes:
        request_id: of the request it listens to.
        events: as they came.
        is_reading: engines must not look at this; the broken one that stalls does.
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
        """The output so far."""
        return unpack_ids(b"".join(event.token_ids for event in list(self.events)))

    @property
    def num_cached_tokens(self) -> int:
        """Tokens found cached, as `Scheduled` says."""
        scheduled = [event.scheduled for event in self.events if event.scheduled is not None]
        return sum(count for one in scheduled for _, count in one.cached)

    @property
    def end(self) -> End | None:
        """The terminal event, if it has come."""
        return next((event.end for event in list(self.events) if event.end is not None), None)

    def check(self) -> None:
        """Raises the first breach of the stream's grammar."""
        if self._violation is not None:
            raise AssertionError(str(self._violation)) from self._violation

    async def until_tokens(self, num: int = 1) -> None:
        """Waits for so many tokens."""
        await until(
            lambda: len(self.tokens) >= num or self.end is not None, "tokens", self._patience_s
        )
        assert len(self.tokens) >= num, f"the stream ended with {self.end} before {num} tokens"

    async def until_end(self) -> End:
        """Waits for the terminal event."""
        await until(lambda: self.end is not None, "the terminal event", self._patience_s)
        self.check()
        assert self.end is not None
        return self.end

    async def finished(self) -> Finished:
        """Waits for the end, which has to be a good one with honest counts."""
        end = await self.until_end()
        assert isinstance(end, Finished), f"expected Finished, got {end}"
        return end

    async def failed(self) -> Failed:
        """Waits for the end, which has to be a failure."""
        end = await self.until_end()
        assert isinstance(end, Failed), f"expected Failed, got {end}"
        return end

    async def rejected(self) -> Rejected:
        """Waits for the end, which has to be a rejection."""
        end = await self.until_end()
        assert isinstance(end, Rejected), f"expected Rejected, got {end}"
        assert end.message, "a rejection says why"
        return end


class Session:
    """An engine under test and everything it was asked.

    Attributes:
        engine: the handle.
        patience_s: how long anything may take.
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
        """Submits a request; its recorder."""
        return self.submit(request)[0]

    def start_unchecked(self, request: GenerateRequest) -> None:
        """Submits a request whose stream need not end."""
        self.engine.submit(request, Recorder(request.request_id))

    async def command(self, command: Command) -> CommandResult:
        """Runs a command."""
        future = asyncio.wrap_future(self.engine.control(command))
        return await asyncio.wait_for(future, self.patience_s)

    async def exact_load(self) -> Load:
        """The load between two steps."""
        result = await self.command(GetLoad())
        assert isinstance(result, CommandDone), f"get_load was answered with {result}"
        assert result.load is not None, "get_load answers with the load"
        return result.load

    def check_streams(self) -> None:
        """Every stream kept its grammar and has ended."""
        for recorder in self._recorders:
            recorder.check()
            assert recorder.end is not None, "a stream has no terminal event"

    async def until_idle(self) -> None:
        """Waits until nothing is held: no row, no pin, no lease, all blocks free or evictable."""
        give_up_at = asyncio.get_running_loop().time() + self.patience_s / 2
        while not (load := await self.exact_load()).is_idle:
            is_late = asyncio.get_running_loop().time() > give_up_at
            assert not is_late, f"the engine is not idle with all streams ended: {load}"
            await asyncio.sleep(0.01)


@asynccontextmanager
async def session(
    factory: EngineFactory, needs: EngineNeeds, patience_s: float
) -> AsyncIterator[Session]:
    """An engine for one rule; at the end every stream is over and the engine idle."""
    async with factory(needs) as engine:
        one = Session(engine, patience_s)
        yield one
        if not needs.is_expendable:
            await asyncio.sleep(0.02)
            await one.until_idle()
        one.check_streams()


async def until(condition: Callable[[], bool], what: str, patience_s: float) -> None:
    """Waits for a condition.

    Raises:
        AssertionError: it does not come true.
    """
    give_up_at = asyncio.get_running_loop().time() + patience_s
    while not condition():
        late = asyncio.get_running_loop().time() > give_up_at
        assert not late, f"{what} did not come within {patience_s:.0f} s"
        await asyncio.sleep(0.001)


def fresh_prompt(num_tokens: int) -> list[int]:
    """A prompt that no engine has cached."""
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
    """A request that runs to its length: greedy unless seeded, EOS ignored."""
    return GenerateRequest(
        request_id=request_id or f"r{next(_ids)}",
        prompt_token_ids=pack_ids(prompt),
        num_output_prefix=num_output_prefix,
        sampling=Sampling(temperature=0.0) if seed is None else Sampling(seed=seed),
        stop=StopRules(max_tokens=max_tokens, ignore_eos=True, stop_token_ids=stop_token_ids),
    )
