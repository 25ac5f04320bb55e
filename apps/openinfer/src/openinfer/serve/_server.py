"""A running server: one engine process and one or more front processes.

    this process: HTTP, text, supervision ── inherited socket ── engine process
    further front processes ──────────────── Unix socket ───────┘

All front processes accept connections from one socket, which listens once the engine is ready. If
the engine dies, it is restarted; meanwhile requests get 503. If it cannot be restarted, the server
ends with status 1.
"""

import asyncio
import logging
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, closing
from importlib.metadata import version
from typing import Any

import msgspec

from openinfer.launch._checkpoint_defaults import keep_honoured_defaults
from openinfer.launch._prepare import Prepared
from openinfer.options._http_options import HttpOptions
from openinfer.options._server_options import ServerOptions
from openinfer.options._text_options import TextOptions
from openinfer.serve._front import FrontProcesses, FrontSpec, SupervisedEngine, freeze_heap
from openinfer_contract import CacheGroupInfo, EngineDead, EngineInfo
from openinfer_engine import EngineSupervisor, physical_cores
from openinfer_frontend import CounterPages, bind, create_app, new_event_loop, serve
from openinfer_text import TextModel

_POLLED_S = 0.01
"""Seconds for which a front process polls; the engine polls as long."""

_logger = logging.getLogger("openinfer")


def run(
    supervisor: EngineSupervisor,
    addresses: Sequence[str],
    prepared: Prepared,
    server: ServerOptions,
    values: Mapping[str, Any],
    begun: float,
) -> None:
    """Serves until SIGINT or SIGTERM.

    Args:
        supervisor: supervisor of the engine process, which may still be starting. It is shut down
            here.
        addresses: further addresses of the engine; the last one is for front processes.
        prepared: the model.
        server: the options of the server.
        values: values of flags by `Flag.dest`, for the text and HTTP options.
        begun: `time.monotonic()` at the start of the command; the time to ready is logged.

    Raises:
        EngineDead: the engine has died, and every attempt to restart it has failed.
        OpenInferError: the server cannot start.
    """
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_run(supervisor, addresses, prepared, server, values, begun))


async def _run(
    supervisor: EngineSupervisor,
    addresses: Sequence[str],
    prepared: Prepared,
    server: ServerOptions,
    values: Mapping[str, Any],
    begun: float,
) -> None:
    async with AsyncExitStack() as stack:
        sock = stack.enter_context(bind(server.host, server.port))
        front = _front_spec(prepared, server, values)
        stack.push_async_callback(supervisor.shutdown)
        info, text = await asyncio.gather(supervisor.start(), asyncio.to_thread(front.load_text))
        stack.callback(text.close)
        if front.http.generation_config == "auto":
            defaults = keep_honoured_defaults(text, info)
            front = msgspec.structs.replace(front, defaults=defaults)
        _logger.info("chats: %s", _describe_parsers(text))
        num_fronts = server.api_server_count
        front = msgspec.structs.replace(front, poll_s=_poll_s(info, num_fronts))
        counters = stack.enter_context(closing(CounterPages(num_fronts)))
        app = create_app(SupervisedEngine(supervisor), text, front.config(), counters=counters)
        others = None
        if num_fronts > 1:
            others = FrontProcesses(front, sock, addresses[-1], num_fronts - 1, counters)
            stack.push_async_callback(others.stop)
            await others.start()
        end = asyncio.create_task(_end_with_engine(supervisor))
        stack.callback(end.cancel)
        await serve(
            app,
            [sock],
            drain_timeout_s=front.http.drain_timeout_s,
            tls=front.http.tls(),
            on_ready=lambda: _on_ready(info, front, sock.getsockname(), begun),
            on_drain=others.drain if others else None,
            on_second_signal=others.hurry if others else None,
        )
        _logger.info("shutting down")
        if supervisor.state == "dead":
            raise EngineDead(supervisor.reason)


async def _end_with_engine(supervisor: EngineSupervisor) -> None:
    """Ends the server, as SIGTERM does, once restarting the engine has failed for good."""
    await supervisor.wait_dead()
    signal.raise_signal(signal.SIGTERM)


def _front_spec(prepared: Prepared, server: ServerOptions, values: Mapping[str, Any]) -> FrontSpec:
    http = HttpOptions.from_values(values)
    if not http.served_model_names:
        http = msgspec.structs.replace(http, served_model_names=(prepared.model.name,))
    return FrontSpec(
        model_path=str(prepared.model.path),
        text=TextOptions.from_values(values),
        version=version("openinfer"),
        log_level=server.log_level,
        http=http,
    )


def _poll_s(info: EngineInfo, num_fronts: int) -> float:
    """Returns the polling time of front processes; 0 if polling would take half of the cores."""
    has_room = info.has_device and physical_cores() >= 2 * (1 + num_fronts)
    return _POLLED_S if has_room else 0.0


def _describe_parsers(text: TextModel) -> str:
    names = [
        f"{what} by {parser.name}" if parser else f"{what} not parsed"
        for what, parser in (
            ("tool calls", text.tool_parser),
            ("reasoning", text.reasoning_parser),
        )
    ]
    return ", ".join(names)


def _on_ready(info: EngineInfo, front: FrontSpec, address: Sequence[Any], begun: float) -> None:
    freeze_heap()
    _announce(info, front, address, begun)


def _announce(info: EngineInfo, front: FrontSpec, address: Sequence[Any], begun: float) -> None:
    limits = info.limits
    tokens, size = _cache_room(info.cache_groups)
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    _logger.info(
        "KV cache: %d tokens (%.2f GiB), %.1f requests of %d tokens at once",
        tokens,
        size / 2**30,
        tokens / limits.max_model_len,
        limits.max_model_len,
    )
    _logger.info(
        "ready in %.1f s: %s by %s on %s (%s), %s://%s:%d",
        time.monotonic() - begun,
        front.http.served_model_names[0],
        info.model_line,
        info.device,
        info.dtype,
        "http" if front.http.ssl_certfile is None else "https",
        host,
        address[1],
    )


def _cache_room(groups: Sequence[CacheGroupInfo]) -> tuple[int, int]:
    """Returns the maximum number of tokens in the cache, and the cache's size in bytes.

    Groups share the memory. Each group's block count assumes that the group has all of it. Other
    memory of sequences, such as states, is not subtracted.
    """
    size = max(group.num_blocks * group.bytes_per_block for group in groups)
    per_token = [g.bytes_per_block / g.tokens_per_block for g in groups if g.kind == "full"]
    return round(size / sum(per_token)) if per_token else 0, size
