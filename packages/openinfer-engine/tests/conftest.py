import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from openinfer_contract import EngineHandle, GenerateRequest, Sampling, StopRules, pack_ids
from openinfer_engine import (
    EngineChild,
    EngineSupervisor,
    InProcessEngine,
    LaunchSpec,
    ProcessSpec,
    RemoteEngine,
    SupervisorOptions,
)
from openinfer_testing import ModelledExecutor
from openinfer_testing.engine import EngineFactory, EngineNeeds, engine_options, modelled_options

MODELLED = "openinfer_testing:modelled_executor"


def process_spec(needs: EngineNeeds) -> ProcessSpec:
    return ProcessSpec(
        launch=LaunchSpec(
            model_path="",
            model_line="modelled",
            engine=engine_options(needs),
            line_options=msgspec.to_builtins(modelled_options(needs)),
        ),
        factory=MODELLED,
    )


@asynccontextmanager
async def in_process(needs: EngineNeeds) -> AsyncIterator[EngineHandle]:
    engine = InProcessEngine(
        lambda: ModelledExecutor(modelled_options(needs)), engine_options(needs)
    )
    try:
        yield engine
    finally:
        engine.close()


class Lender:
    """Engine processes in one event loop. A process that a rule leaves alive is used again."""

    def __init__(self, folder: Path) -> None:
        self.runner = asyncio.Runner()
        self._folder = folder
        self._children: dict[EngineNeeds, EngineChild] = {}
        self._supervisors: dict[EngineNeeds, EngineSupervisor] = {}

    async def _start(self, needs: EngineNeeds) -> EngineChild:
        name = f"{len(list(self._folder.iterdir()))}.sock"
        listen = [f"unix:{self._folder / name}", "tcp:127.0.0.1:0"]
        return await EngineChild.start(process_spec(needs), listen=listen)

    @asynccontextmanager
    async def _child(self, needs: EngineNeeds) -> AsyncIterator[EngineChild]:
        if needs.is_expendable:
            process = await self._start(needs)
            try:
                yield process
            finally:
                await process.stop(10.0)
            return
        if needs not in self._children:
            self._children[needs] = await self._start(needs)
        yield self._children[needs]

    @asynccontextmanager
    async def socketpair(self, needs: EngineNeeds) -> AsyncIterator[EngineHandle]:
        async with self._child(needs) as process:
            yield process.engine

    @asynccontextmanager
    async def supervised(self, needs: EngineNeeds) -> AsyncIterator[EngineHandle]:
        if needs not in self._supervisors or needs.is_expendable:
            options = SupervisorOptions(max_failed_starts=0)
            spec = process_spec(needs).launch
            engine = EngineSupervisor(spec, factory=MODELLED, options=options)
            await engine.start()
            self._supervisors[needs] = engine
        yield self._supervisors[needs]
        if needs.is_expendable:
            await self._supervisors.pop(needs).shutdown()

    @asynccontextmanager
    async def unix(self, needs: EngineNeeds) -> AsyncIterator[EngineHandle]:
        async with self._child(needs) as process, _connected(process.addresses[0]) as engine:
            yield engine

    @asynccontextmanager
    async def tcp(self, needs: EngineNeeds) -> AsyncIterator[EngineHandle]:
        async with self._child(needs) as process, _connected(process.addresses[1]) as engine:
            yield engine

    async def stop(self) -> None:
        for supervisor in self._supervisors.values():
            await supervisor.shutdown()
        for process in self._children.values():
            assert await process.stop(10.0) == 0, "an engine process does not end well"


@asynccontextmanager
async def _connected(address: str) -> AsyncIterator[EngineHandle]:
    engine = await RemoteEngine.connect(address)
    try:
        yield engine
    finally:
        engine.disconnect()


@pytest.fixture(scope="session")
def lender(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lender]:
    lender = Lender(tmp_path_factory.mktemp("engines"))
    with lender.runner:
        yield lender
        lender.runner.run(lender.stop())


@pytest.fixture
def in_process_factory() -> EngineFactory:
    return in_process


@pytest.fixture
def modelled_spec() -> Callable[[EngineNeeds], ProcessSpec]:
    return process_spec


@pytest.fixture
def make_request() -> Callable[..., GenerateRequest]:
    def make(
        prompt: Iterable[int] = (5, 6, 7),
        *,
        request_id: str = "r",
        max_tokens: int = 8,
        **more: Any,
    ) -> GenerateRequest:
        return GenerateRequest(
            request_id=request_id,
            prompt_token_ids=pack_ids(prompt),
            stop=StopRules(max_tokens=max_tokens, ignore_eos=True),
            **{"sampling": Sampling(temperature=0.0)} | more,
        )

    return make
