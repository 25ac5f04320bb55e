"""The state that all routes share: the current engine, the text model, the drain."""

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from openinfer_contract import (
    AddSpans,
    Command,
    CommandDone,
    CommandFailed,
    EngineDead,
    EngineHandle,
    command_name,
)
from openinfer_frontend._config import FrontendConfig
from openinfer_frontend._provider import EngineProvider
from openinfer_frontend.errors import ApiError, Refusal
from openinfer_frontend.generation._generation import Generation
from openinfer_frontend.generation._text_work import TextWork
from openinfer_frontend.http._http_exchange import HttpExchange
from openinfer_frontend.http._polling import Polling
from openinfer_frontend.metrics._metrics import Metrics
from openinfer_frontend.metrics._metrics_pages import MetricsPages

SHUTTING_DOWN = "the server is shutting down"
_POLL_S = 0.05
_STATUS_OF_FAILURE = {"unsupported": 501, "failed": 500, "refused": 409}


class Backend:
    """Shared by the routes of one application; belongs to its event loop."""

    def __init__(
        self,
        provider: EngineProvider,
        text: TextWork,
        config: FrontendConfig,
        metrics: Metrics,
        polling: Polling,
    ) -> None:
        self.provider = provider
        self.text = text
        self.config = config
        self.metrics = metrics
        self.polling = polling
        self.metrics_pages = MetricsPages(polling)
        self.is_draining = False
        self.num_in_flight = 0
        self.live: dict[str, Generation] = {}
        """Running generations by response id."""
        self._claimed: set[str] = set()
        """Ids of the running responses and of their engine requests."""
        self._idle = asyncio.Event()
        self._idle.set()

    def close(self) -> None:
        """Stops the threads once their work is done. Idempotent."""
        self.text.close()
        self.metrics_pages.close()

    def engine(self) -> EngineHandle:
        """Returns the current engine.

        Raises:
            ApiError: 503, if there is none.
        """
        try:
            return self.provider.handle()
        except EngineDead as error:
            raise self._refused(error.reason, "engine_unavailable") from error

    def _refused(self, message: str, refusal: Refusal) -> ApiError:
        return ApiError.unavailable(message, self.config.retry_after_s, refusal)

    async def resubmit(self, submit: Callable[[EngineHandle], None]) -> bool:
        """Submits unfinished choices to the engine that replaces a dead one.

        Returns:
            False if no engine takes over in time.

        Args:
            submit: called until it raises no EngineDead. An engine may have died without the
                provider's knowledge.
        """
        try:
            async with asyncio.timeout(self.config.resume_timeout_s):
                while self.provider.state != "dead":
                    with suppress(EngineDead):
                        submit(self.provider.handle())
                        return True
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            pass
        return False

    def check_ready(self) -> None:
        """Raises `ApiError` 503 unless new requests can be served."""
        if self.is_draining:
            raise ApiError.unavailable(SHUTTING_DOWN, self.config.retry_after_s)
        state = self.provider.state
        if state != "ready":
            raise ApiError.unavailable(f"the engine is {state}", self.config.retry_after_s)

    def check_model(self, name: str | None) -> None:
        """Raises `ApiError` 404 if the request names an unknown model."""
        if name is not None and name not in self.config.served_model_names:
            served = ", ".join(f"`{known}`" for known in self.config.served_model_names)
            message = f"The model `{name[:200]}` does not exist; this server has {served}."
            raise ApiError(404, message, param="model")

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Counts a running request; a drain waits for its end.

        Raises:
            ApiError: 503, while draining or if `max_in_flight` requests run.
        """
        if self.is_draining:
            raise self._refused(SHUTTING_DOWN, "draining")
        if self.num_in_flight >= self.config.max_in_flight:
            raise self._refused("too many requests at once; try again later", "max_in_flight")
        self.num_in_flight += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.num_in_flight -= 1
            self.polling.touch()  # The client's next request often follows at once.
            if self.num_in_flight == 0:
                self._idle.set()

    @contextmanager
    def registered(self, response_id: str, generation: Generation) -> Iterator[None]:
        """Reserves a response's ids, and makes the response known to `/abort_requests`.

        Clients choose ids, and the engine aborts by id. Enter this block before the generation:
        otherwise a duplicate would abort the live request of the same id when it fails.

        Raises:
            ApiError: 409, if a live request has one of the ids.
        """
        ids = {response_id, *generation.request_ids}
        taken = self._claimed & ids
        if taken:
            message = f"request_id: a request with the id {min(taken)} is running already"
            raise ApiError(409, message, param="request_id")
        self._claimed |= ids
        self.live[response_id] = generation
        try:
            yield
        finally:
            self._claimed -= ids
            del self.live[response_id]

    async def wait_idle(self) -> None:
        """Returns when no request is running."""
        await self._idle.wait()

    async def control(self, command: Command) -> CommandDone:
        """Runs a command.

        Raises:
            ApiError: the engine does not know the command (501), failed to run it (500), refused it
                in its current state (409), has died or did not respond in time (503).
        """
        engine = self.engine()
        name = command_name(command)
        if name not in engine.info.commands:
            raise ApiError(501, f"this engine does not support {name}")
        try:
            async with asyncio.timeout(self.config.control_timeout_s):
                result = await asyncio.wrap_future(engine.control(command))
        except EngineDead as error:
            raise ApiError.unavailable(error.reason, self.config.retry_after_s) from error
        except TimeoutError:
            # The error has no retry-after: a retry would only queue the command a second time.
            message = f"{name} did not finish in time; it stays queued and takes effect later"
            raise ApiError.from_engine(503, message) from None
        if isinstance(result, CommandFailed):
            raise ApiError.from_engine(_STATUS_OF_FAILURE[result.kind], result.message)
        return result

    def trace(self, exchange: HttpExchange) -> None:
        """Adds a finished request to the engine's trace, if one is being written."""
        if not exchange.num_body_bytes or self.provider.state != "ready":
            return
        with suppress(EngineDead):
            engine = self.provider.handle()
            if engine.load().is_tracing:
                spans = exchange.spans.finish(exchange.path)
                engine.control(AddSpans(exchange.request_id, os.getpid(), "front", spans))
