"""The operator's routes."""

import re
from pathlib import Path
from typing import Annotated, Literal, Self, cast, get_args

from pydantic import ConfigDict, Field, model_validator

from openinfer_contract import (
    GetLoad,
    Pause,
    ResetPrefixCache,
    Resume,
    StartTrace,
    StopTrace,
    command_name,
)
from openinfer_frontend._backend import Backend
from openinfer_frontend.errors import ApiError
from openinfer_frontend.http._http_exchange import HttpExchange
from openinfer_frontend.http._router import Handler
from openinfer_frontend.protocols._generation_request import RequestModel, Strings

PauseMode = Literal["abort", "wait", "keep"]
_WHICH_REQUESTS = (
    "name the requests to abort: either request_ids, a list of ids, or abort_all: true"
)


class AbortRequest(RequestModel):
    """POST /abort_requests. An unknown field is refused: a misspelled one must not abort all."""

    model_config = ConfigDict(extra="forbid")

    request_ids: Annotated[Strings, Field(max_length=65536)] | None = None
    """Ids of responses, or of their requests."""
    abort_all: Annotated[bool, Field(strict=True)] | None = None
    """true: all requests of this front process, instead of `request_ids`."""

    @model_validator(mode="after")
    def _names_requests(self) -> Self:
        if (self.request_ids is not None) == bool(self.abort_all):
            raise ApiError(400, _WHICH_REQUESTS, param="request_ids")
        return self


class AdminRoutes:
    """Aborts, pauses, cache resets and traces."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def reset_prefix_cache(self, exchange: HttpExchange) -> None:
        """POST /reset_prefix_cache."""
        await self._backend.control(ResetPrefixCache())
        await exchange.respond(200, b"")

    async def abort(self, exchange: HttpExchange) -> None:
        """POST /abort_requests."""
        request = await exchange.read_model(AbortRequest)
        live = self._backend.live
        wanted = set(request.request_ids or ())
        found = [n for n in live if request.abort_all or not wanted.isdisjoint(_ids_of(n))]
        for response_id in found:
            live[response_id].abort()
        await exchange.respond_json({"aborted": found})

    async def pause(self, exchange: HttpExchange) -> None:
        """POST /pause?mode=."""
        mode = exchange.query("mode") or "wait"
        if mode not in get_args(PauseMode):
            message = f"mode: must be one of {', '.join(get_args(PauseMode))}"
            raise ApiError(400, message, param="mode")
        await self._backend.control(Pause(mode=cast("PauseMode", mode)))
        await exchange.respond_json({"is_paused": True})

    async def resume(self, exchange: HttpExchange) -> None:
        """POST /resume."""
        await self._backend.control(Resume())
        await exchange.respond_json({"is_paused": False})

    async def is_paused(self, exchange: HttpExchange) -> None:
        """GET /is_paused."""
        engine = self._backend.engine()
        load = engine.load()
        if command_name(GetLoad()) in engine.info.commands:
            load = (await self._backend.control(GetLoad())).load or load
        await exchange.respond_json({"is_paused": load.is_paused})

    async def start_trace(self, exchange: HttpExchange) -> None:
        """POST /start_profile?kernels=."""
        kernels = exchange.query("kernels") or "false"
        if kernels not in ("true", "false"):
            raise ApiError(400, "kernels: must be true or false", param="kernels")
        done = await self._backend.control(StartTrace(has_kernels=kernels == "true"))
        await exchange.respond_json({"is_tracing": True, "file": Path(done.message).name})

    async def stop_trace(self, exchange: HttpExchange) -> None:
        """POST /stop_profile."""
        done = await self._backend.control(StopTrace())
        await exchange.respond_json({"is_tracing": False, "file": Path(done.message).name})


def _ids_of(response_id: str) -> tuple[str, str]:
    """Returns a response's id and its request's: `chatcmpl-abc` and `abc`."""
    return response_id, re.split("[-_]", response_id, maxsplit=1)[1]


def not_enabled(what: str) -> Handler:
    """Returns a handler that responds with a 501.

    Args:
        what: a sentence for the client.
    """

    async def refuse(exchange: HttpExchange) -> None:
        raise ApiError(501, what)

    return refuse
