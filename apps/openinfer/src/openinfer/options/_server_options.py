"""The options of the server around the engine and the front processes."""

from typing import Annotated, Any, Literal

from msgspec import Struct

from openinfer.errors import UsageError
from openinfer.options._option_structs import to_struct
from openinfer_engine import Option, flags_of


class ServerOptions(Struct, frozen=True, kw_only=True):
    """The address, the processes and the log of a server."""

    host: Annotated[str, Option("address to listen on")] = "127.0.0.1"
    port: Annotated[int, Option("port to listen on; 0 takes any free one")] = 8000
    api_server_count: Annotated[int, Option("number of front processes that share the port")] = 1
    engine_address: Annotated[
        str | None, Option("unix:PATH or tcp:HOST:PORT on which the engine also listens")
    ] = None
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Option("least severe messages to log", names=("--log-level", "--uvicorn-log-level")),
    ] = "info"

    @classmethod
    def from_values(cls, values: dict[str, Any]) -> "ServerOptions":
        """Returns the options with these values, by `Flag.dest`.

        Raises:
            UsageError: naming the flag whose value is out of range.
        """
        options = to_struct(cls, values)
        if options.api_server_count < 1:
            raise UsageError("--api-server-count must be at least 1")
        if not options.host:
            raise UsageError("--host must not be empty")
        if not 0 <= options.port < 2**16:
            raise UsageError("--port must be between 0 (any free one) and 65535")
        return options


SERVER_FLAGS = flags_of(ServerOptions, "server")
