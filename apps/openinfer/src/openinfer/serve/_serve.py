"""`openinfer serve`: what is asked for, then the engine's process, then all the rest beside it."""

import argparse
import logging
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from openinfer._interrupts import raise_interrupts
from openinfer._log import start_logging
from openinfer.errors import UsageError
from openinfer.launch._prepare import prepare
from openinfer.options._config_file import read_config_file
from openinfer.options._http_options import HttpOptions
from openinfer.serve._arenas import keep_one_arena
from openinfer_engine import AddressRejected, EngineStartError, EngineSupervisor

_DEFAULTS: dict[str, Any] = {
    "host": "127.0.0.1",
    "port": 8000,
    "log_level": "info",
    "api_server_count": 1,
    "trust_request_chat_template": False,
    "tool_call_parser": "auto",
    "reasoning_parser": "auto",
    "reasoning_field": "both",
    "max_body_bytes": HttpOptions().max_body_bytes,
    "max_in_flight": HttpOptions().max_in_flight,
    "body_timeout_s": HttpOptions().body_timeout_s,
    "stall_timeout_s": HttpOptions().stall_timeout_s,
    "resume_timeout_s": HttpOptions().resume_timeout_s,
    "drain_timeout_s": HttpOptions().drain_timeout_s,
    "metrics_prefix": HttpOptions().metrics_prefix,
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
    prepared = prepare(
        values.get("model"),
        values,
        line_values=line_values,
        line_arguments=extra,
        line_where=f"--config {namespace.config}: " if namespace.config else "",
    )
    start_logging(values["log_level"])
    keep_one_arena()
    _logger.info("starting: %s by %s", prepared.model.name, prepared.line.name)
    raise_interrupts()  # there is a process to end from here on
    with ExitStack() as stack:
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
        stack.callback(supervisor.close)
        supervisor.spawn()
        # Imported while the engine's process imports torch: together they take half of its time.
        from openinfer.serve._server import run

        try:
            run(supervisor, addresses, prepared, values, begun)
        except EngineStartError as error:
            own = f"address {values.get('engine_address')}:"
            if error.kind == AddressRejected.__name__ and error.message.startswith(own):
                raise UsageError(f"--engine-address: {error.message}") from error
            raise
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
