"""The ASGI application: dispatch to routes, error responses, request ids, draining."""

import asyncio
import logging
import time
from urllib.parse import quote

from openinfer_frontend._backend import SHUTTING_DOWN, Backend
from openinfer_frontend._config import FrontendConfig
from openinfer_frontend._provider import EngineProvider
from openinfer_frontend.errors import ApiError, ClientGone
from openinfer_frontend.generation._text_work import TextWork
from openinfer_frontend.http._guard import Guard
from openinfer_frontend.http._http_exchange import HttpExchange, PendingBodies, Receive, Scope, Send
from openinfer_frontend.http._polling import Polling
from openinfer_frontend.http._router import Router
from openinfer_frontend.metrics._counters import CounterPages
from openinfer_frontend.metrics._metrics import HttpMetrics, Metrics
from openinfer_frontend.routes._route_table import make_routes
from openinfer_text import TextModel

_log = logging.getLogger(__name__)


class FrontendApp:
    """The HTTP front end of one engine, as a raw ASGI application.

    It belongs to the event loop that serves it, and needs no lifespan events.
    """

    def __init__(
        self,
        provider: EngineProvider,
        text: TextModel,
        config: FrontendConfig,
        counters: CounterPages,
        number: int,
    ) -> None:
        polling = Polling(config.poll_s)
        work = TextWork(
            text,
            num_threads=config.num_text_threads,
            max_inline_bytes=config.max_inline_bytes,
            allow_request_templates=config.trust_request_chat_template,
            polling=polling,
        )
        self._metrics = Metrics(counters, number)
        self._backend = Backend(provider, work, config, self._metrics, polling)
        self._guard = Guard(config)
        self._bodies = PendingBodies(config.max_pending_body_bytes)
        routes = make_routes(self._backend)
        self._http_metrics = HttpMetrics(self._metrics.table, routes)
        counters.write_layout(number, self._metrics.table.layout)
        self._router = Router(routes)
        self._exchanges: set[HttpExchange] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one HTTP request.

        Raises:
            ValueError: the scope is not HTTP.
        """
        if scope["type"] != "http":
            raise ValueError(f"this application does not serve {scope['type']}")
        exchange = HttpExchange(scope, receive, send, self._backend.config, self._bodies)
        self._exchanges.add(exchange)
        try:
            await self._handle(exchange)
        except ClientGone:
            return
        except asyncio.CancelledError:
            if not exchange.is_client_gone:
                raise
        finally:
            self._exchanges.discard(exchange)
            self._http_metrics.count(exchange)
            self._backend.trace(exchange)
            if _log.isEnabledFor(logging.DEBUG):
                _log_request(exchange)

    async def _handle(self, exchange: HttpExchange) -> None:
        exchange.dialect = self._router.dialect(exchange.path)
        try:
            exchange.cors_headers = self._guard.cors_headers(exchange)
            exchange.adopt_request_id()
            preflight = self._guard.preflight_headers(exchange)
            if preflight is not None:
                await exchange.respond(204, b"", *preflight)
                return
            route = self._router.find(exchange.method, exchange.path)
            exchange.route_path = route.path
            self._guard.check(route, exchange)
            with exchange.interruptible():
                await route.handler(exchange)
        except ApiError as error:
            if error.refusal is not None and exchange.num_body_bytes:
                self._metrics.count_refusal(error.refusal)
            await exchange.respond_error(error)
        except ClientGone:
            raise
        except Exception:
            _log.exception("%s %s failed", exchange.method, exchange.path)
            await exchange.respond_error(ApiError(500, "internal error"))

    @property
    def num_in_flight(self) -> int:
        """Requests that the engine works on now."""
        return self._backend.num_in_flight

    def start_draining(self) -> None:
        """Makes `/ready` return 503 and refuses new requests; running requests continue."""
        self._backend.is_draining = True

    async def drained(self) -> None:
        """Returns when no request is running."""
        await self._backend.wait_idle()

    def cut_off(self) -> int:
        """Ends every unfinished request with a 503, and returns how many there were.

        A stream that has begun ends with the error as its last event. The tasks of the requests
        send the responses soon after this call.
        """
        error = ApiError.unavailable(SHUTTING_DOWN, self._backend.config.retry_after_s)
        return sum([exchange.interrupt(error) for exchange in self._exchanges])

    def close(self) -> None:
        """Stops the threads. Idempotent; does not close the engine or the text model."""
        self._backend.close()


def _log_request(exchange: HttpExchange) -> None:
    _log.debug(
        "%s %s %s in %.3f s, request %s",
        exchange.method,
        quote(
            exchange.path
        ),  # the path is decoded: a line break in it must not start another log line
        exchange.status or "without a response",
        time.monotonic() - exchange.spans.received_at,
        exchange.request_id,
    )


def create_app(
    provider: EngineProvider,
    text: TextModel,
    config: FrontendConfig,
    *,
    counters: CounterPages | None = None,
    number: int = 0,
) -> FrontendApp:
    """Makes the application over an engine and the text model of its checkpoint.

    Args:
        provider: gives the current engine; not owned.
        text: tokenizer, template and defaults; not owned.
        config: the operator's choices.
        counters: the counters of all front processes of the server, for `/metrics`.
        number: the index of this process in `counters`; a process that replaces a dead one takes
            over its index.
    """
    return FrontendApp(provider, text, config, counters or CounterPages(), number)
