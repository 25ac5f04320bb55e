"""`openinfer serve`: one engine process, one or more front processes, wired and watched.

    this process: HTTP, text, supervision ── inherited socket ── engine process
    further front processes ──────────────── Unix socket ───────┘

All front processes accept from one socket. It listens once the engine can answer; an engine that
dies is restarted while the port stays open and answers 503.
"""

import argparse
import asyncio
import logging
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from importlib.metadata import version
from typing import Any

import msgspec

from openinfer._config_file import read_config_file
from openinfer._defaults import keep_honoured_defaults
from openinfer._front import FrontProcesses, FrontSpec, SupervisedEngine, freeze_heap
from openinfer._http_options import HttpOptions
from openinfer._prepare import Prepared, prepare
from openinfer._text_options import TextOptions
from openinfer.errors import UsageError
from openinfer_contract import EngineInfo
from openinfer_engine import EngineSupervisor
from openinfer_frontend import bind, create_app, new_event_loop
from openinfer_frontend import serve as serve_http
from openinfer_text import TextModel

_DEFAULTS: dict[str, Any] = {
    "host": "127.0.0.1",
    "port": 8000,
    "log_level": "info",
    "api_server_count": 1,
    "tool_call_parser": "auto",
    "reasoning_parser": "auto",
    "max_body_bytes": HttpOptions().max_body_bytes,
    "max_in_flight": HttpOptions().max_in_flight,
    "body_timeout_s": HttpOptions().body_timeout_s,
    "stall_timeout_s": HttpOptions().stall_timeout_s,
    "resume_timeout_s": HttpOptions().resume_timeout_s,
    "drain_timeout_s": HttpOptions().drain_timeout_s,
    "tokenizer_backend": "auto",
}

_logger = logging.getLogger("openinfer")


def serve(namespace: argparse.Namespace, extra: Sequence[str]) -> int:
    """Serves until SIGINT or SIGTERM.

    Raises:
        OpenInferError: a sentence that says what to do.
    """
    begun = time.monotonic()
    values, line_values = _settings(namespace)
    prepared = prepare(values.get("model"), values, line_values=line_values, line_arguments=extra)
    logging.basicConfig(
        level=values["log_level"].upper(),
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(message)s",
        datefmt="%H:%M:%S",
    )
    _logger.info("starting: %s by %s", prepared.model.name, prepared.line.name)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_run(prepared, values, begun))
    return 0


def _settings(namespace: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """Flags over the config file over defaults; apart, what only a model line can know."""
    given = vars(namespace)
    known, unknown = read_config_file(namespace.config) if namespace.config else ({}, {})
    flags = {name: value for name, value in given.items() if name not in _NOT_FLAGS}
    positional = given["positional"]
    if positional is not None and flags.get("model", positional) != positional:
        raise UsageError(f"two models are given: {positional} and --model {flags['model']}")
    if positional is not None:
        flags["model"] = positional
    values = _DEFAULTS | known | flags
    if values["api_server_count"] < 1:
        raise UsageError("--api-server-count must be at least 1")
    if "" in values.get("served_model_names", ()):
        raise UsageError("--served-model-name must not be empty")
    if not values["host"]:
        raise UsageError("--host must not be empty")
    if not 0 <= values["port"] < 2**16:
        raise UsageError("--port must be between 0 (any free one) and 65535")
    return values, unknown


_NOT_FLAGS = frozenset({"command", "run", "takes_extra", "config", "positional"})


async def _run(prepared: Prepared, values: Mapping[str, Any], begun: float) -> None:
    async with AsyncExitStack() as stack:
        sock = stack.enter_context(bind(values["host"], values["port"]))
        front = _front_spec(prepared, values)
        addresses = [values["engine_address"]] if values.get("engine_address") else []
        if values["api_server_count"] > 1:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="openinfer-"))
            addresses.append(f"unix:{folder}/engine.sock")
        supervisor = EngineSupervisor(
            prepared.spec,
            factory=prepared.factory,
            listen=addresses,
            log_level=values["log_level"],
        )
        stack.push_async_callback(supervisor.shutdown)
        info, text = await asyncio.gather(supervisor.start(), asyncio.to_thread(front.load_text))
        if front.generation_config == "auto":
            defaults = keep_honoured_defaults(text, info)
            front = msgspec.structs.replace(front, defaults=defaults)
        _logger.info("chats: %s", _describe_parsers(text))
        app = create_app(SupervisedEngine(supervisor), text, front.config())
        others = None
        if values["api_server_count"] > 1:
            others = FrontProcesses(front, sock, addresses[-1], values["api_server_count"] - 1)
            stack.push_async_callback(others.stop)
            await others.start()
        await serve_http(
            app,
            [sock],
            drain_timeout_s=front.http.drain_timeout_s,
            tls=front.http.tls(),
            on_ready=lambda: _on_ready(info, front, sock.getsockname(), begun),
            on_drain=others.drain if others else None,
        )
        if others and app.num_in_flight:
            # A second signal cut off what was left here.
            others.kill()
        _logger.info("shutting down")


def _front_spec(prepared: Prepared, values: Mapping[str, Any]) -> FrontSpec:
    return FrontSpec(
        model_path=str(prepared.model.path),
        served_model_names=tuple(values.get("served_model_names") or (prepared.model.name,)),
        generation_config=values.get("generation_config", "auto"),
        text=TextOptions.from_values(values),
        version=version("openinfer"),
        http=HttpOptions.from_values(values),
    )


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
    tokens = sum(group.num_blocks * group.tokens_per_block for group in info.cache_groups)
    size = sum(group.num_blocks * group.bytes_per_block for group in info.cache_groups)
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
        front.served_model_names[0],
        info.model_line,
        info.device,
        info.dtype,
        "http" if front.http.ssl_certfile is None else "https",
        host,
        address[1],
    )
