"""`openinfer serve`: reads the options, starts the engine process, then the server."""

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
from openinfer.options._server_options import ServerOptions
from openinfer.serve._arenas import keep_one_arena
from openinfer_engine import AddressRejected, EngineStartError, EngineSupervisor

_logger = logging.getLogger("openinfer")


def serve(namespace: argparse.Namespace, extra: Sequence[str]) -> int:
    """Serves until SIGINT or SIGTERM.

    Raises:
        OpenInferError: the server cannot start.
    """
    begun = time.monotonic()
    server, values, line_values = _settings(namespace)
    prepared = prepare(
        values.get("model"),
        values,
        line_values=line_values,
        line_arguments=extra,
        line_where=f"--config {namespace.config}: " if namespace.config else "",
    )
    start_logging(server.log_level)
    keep_one_arena()
    _logger.info("starting: %s by %s", prepared.model.name, prepared.line.name)
    raise_interrupts()  # from here on there is a process to end
    with ExitStack() as stack:
        addresses = [server.engine_address] if server.engine_address else []
        if server.api_server_count > 1:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="openinfer-"))
            addresses.append(f"unix:{folder}/engine.sock")
        supervisor = EngineSupervisor(
            prepared.spec,
            factory=prepared.factory,
            listen=addresses,
            log_level=server.log_level,
        )
        stack.callback(supervisor.close)
        supervisor.spawn()
        # Imported while the engine process imports torch, so that it costs no start time.
        from openinfer.serve._server import run

        try:
            run(supervisor, addresses, prepared, server, values, begun)
        except EngineStartError as error:
            own = f"address {server.engine_address}:"
            if error.kind == AddressRejected.__name__ and error.message.startswith(own):
                raise UsageError(f"--engine-address: {error.message}") from error
            raise
    return 0


def _settings(
    namespace: argparse.Namespace,
) -> tuple[ServerOptions, dict[str, Any], dict[str, Any]]:
    """Returns the options of the server, of flags by `Flag.dest`, and of the model line by name.

    A flag on the command line overrides the configuration file.
    """
    given = vars(namespace)
    known, unknown = read_config_file(namespace.config) if namespace.config else ({}, {})
    flags = {name: value for name, value in given.items() if name not in _NOT_FLAGS}
    positional = given["positional"]
    if positional is not None and flags.get("model", positional) != positional:
        raise UsageError(f"two models are given: {positional} and --model {flags['model']}")
    if positional is not None:
        flags["model"] = positional
    values = known | flags
    if "" in values.get("served_model_names", ()):
        raise UsageError("--served-model-name must not be empty")
    return ServerOptions.from_values(values), values, unknown


_NOT_FLAGS = frozenset({"command", "run", "takes_extra", "config", "positional"})
