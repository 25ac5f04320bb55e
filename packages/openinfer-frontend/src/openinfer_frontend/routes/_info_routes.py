"""The routes that describe the server."""

import time
from contextlib import suppress
from datetime import UTC, datetime

from msgspec.structs import asdict

from openinfer_contract import CommandDone, EngineDead, GetLoad, command_name
from openinfer_frontend._backend import Backend
from openinfer_frontend.errors import ApiError
from openinfer_frontend.http._http_exchange import HttpExchange
from openinfer_frontend.metrics._metrics import MetricsSnapshot


class InfoRoutes:
    """Models, health, version and load."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._created = int(time.time())
        self._max_model_len: int | None = None

    async def models(self, exchange: HttpExchange) -> None:
        """GET /v1/models."""
        names = self._backend.config.served_model_names
        data = [self._model(name) for name in names]
        pages = {"has_more": False, "first_id": names[0], "last_id": names[-1]}
        await exchange.respond_json({"object": "list", "data": data} | pages)

    async def model(self, exchange: HttpExchange) -> None:
        """GET /v1/models/{id}; ids may contain slashes."""
        name = exchange.path.removeprefix("/v1/models/")
        self._backend.check_model(name)
        await exchange.respond_json(self._model(name))

    def _model(self, name: str) -> dict[str, object]:
        """Returns OpenAI's model object with the fields of Anthropic's added."""
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "type": "model",
            "display_name": name,
            "created_at": datetime.fromtimestamp(self._created, UTC).isoformat(),
            "lifecycle": "active",
            "owned_by": "openinfer",
            "root": self._backend.config.model_name,
            "parent": None,
            "max_model_len": self._backend.engine().info.limits.max_model_len,
        }

    async def health(self, exchange: HttpExchange) -> None:
        """GET /health: 200 if the engine can answer."""
        state = self._backend.provider.state
        if state != "ready":
            raise ApiError.unavailable(f"the engine is {state}", self._backend.config.retry_after_s)
        await exchange.respond(200, b"")

    async def ready(self, exchange: HttpExchange) -> None:
        """GET /ready: 200 if new requests are accepted; a drain ends that first."""
        self._backend.check_ready()
        await exchange.respond(200, b"")

    async def version(self, exchange: HttpExchange) -> None:
        """GET /version."""
        await exchange.respond_json({"version": self._backend.config.version})

    async def metrics(self, exchange: HttpExchange) -> None:
        """GET /metrics: counts of all front processes, and of the engine if there is one."""
        accept = exchange.header("accept") or ""
        page, media_type = await self._backend.metrics_pages.get(accept, self._snapshot)
        await exchange.respond(200, page, media_type=media_type.encode())

    def _snapshot(self) -> MetricsSnapshot:
        metrics, config = self._backend.metrics, self._backend.config
        engine = None
        with suppress(EngineDead):
            handle = self._backend.provider.handle()
            engine = handle.info, handle.load()
            self._max_model_len = handle.info.limits.max_model_len
        return MetricsSnapshot(
            totals=metrics.pages.totals(metrics.table.num_cells),
            families=metrics.table.families,
            prefix=config.metrics_prefix,
            model_name=config.model_name,
            max_model_len=self._max_model_len,
            engine=engine,
        )

    async def server_info(self, exchange: HttpExchange) -> None:
        """GET /server_info: the server's model, engine, limits and parsers."""
        info, text = self._backend.engine().info, self._backend.text.model
        fields = asdict(info) | {
            "limits": asdict(info.limits),
            "cache_groups": [asdict(group) for group in info.cache_groups],
            "honoured": sorted(info.honoured),
            "commands": sorted(info.commands),
        }
        names = {"tool_parser": text.tool_parser, "reasoning_parser": text.reasoning_parser}
        served = {
            "version": self._backend.config.version,
            "served_model_names": self._backend.config.served_model_names,
            **{name: None if parser is None else parser.name for name, parser in names.items()},
        }
        await exchange.respond_json(served | {"engine_info": fields})

    async def load(self, exchange: HttpExchange) -> None:
        """GET /load: exact if the engine can report its load between two steps."""
        engine = self._backend.engine()
        load = engine.load()
        if command_name(GetLoad()) in engine.info.commands:
            done: CommandDone = await self._backend.control(GetLoad())
            load = done.load or load
        fields = asdict(load) | {"cache_groups": [asdict(group) for group in load.cache_groups]}
        num_requests = load.num_running + load.num_waiting
        await exchange.respond_json(fields | {"is_idle": load.is_idle, "server_load": num_requests})
