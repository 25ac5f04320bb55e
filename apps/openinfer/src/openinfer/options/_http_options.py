"""The options of the HTTP API: names, keys, origins, limits, timeouts, certificates.

`openinfer_frontend` is imported inside the functions: `serve` reads these options before it starts
the engine process, and imports the front end while that process starts.
"""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Struct
from msgspec.structs import asdict, replace

from openinfer.errors import UsageError
from openinfer.options._option_structs import to_struct
from openinfer_engine import Option, flags_of

if TYPE_CHECKING:
    from openinfer_frontend import Tls

API_KEY = "OPENINFER_API_KEY"
ADMIN_API_KEY = "OPENINFER_ADMIN_API_KEY"


class HttpOptions(Struct, frozen=True, kw_only=True):
    """HTTP options that the operator sets. Most fields are those of `FrontendConfig`."""

    served_model_names: Annotated[
        tuple[str, ...],
        Option(
            "model name accepted in requests, instead of the model's own; a response repeats the "
            "name that was asked for",
            names=("--served-model-name",),
        ),
    ] = ()
    trust_request_chat_template: Annotated[
        bool,
        Option(
            "accept chat templates in requests; their CPU time and output are limited",
            off=("--no-trust-request-chat-template",),
        ),
    ] = False
    reasoning_field: Annotated[
        Literal["both", "reasoning", "reasoning_content"],
        Option("name of the reasoning field in chat completions"),
    ] = "both"
    generation_config: Annotated[
        Literal["auto", "vllm"],
        Option(
            "auto: the checkpoint's sampling defaults; vllm: temperature 1 and no truncation",
        ),
    ] = "auto"
    metrics_prefix: Annotated[str, Option("prefix of metric names at /metrics")] = "vllm:"
    api_keys: Annotated[
        tuple[str, ...],
        Option(
            "key for the API; default: OPENINFER_API_KEY, else no key is needed",
            names=("--api-key",),
        ),
    ] = ()
    admin_api_key: Annotated[
        str | None, Option("key for the operator's routes; default: OPENINFER_ADMIN_API_KEY")
    ] = None
    allowed_origins: Annotated[
        tuple[str, ...], Option("origin whose web pages may use the API; * for all")
    ] = ()
    ssl_certfile: Annotated[str | None, Option("serve HTTPS with this certificate")] = None
    ssl_keyfile: Annotated[
        str | None, Option("private key of the certificate, if it is in another file")
    ] = None
    ssl_ca_certs: Annotated[
        str | None, Option("require client certificates signed by one of the CAs in this file")
    ] = None
    max_body_bytes: Annotated[
        int, Option("longest request body in bytes; a longer one gets 413", kind="count")
    ] = 16 << 20
    max_in_flight: Annotated[
        int,
        Option(
            "upper bound of requests that one front process runs at once; further ones get 503",
            kind="count",
        ),
    ] = 8192
    request_timeout_s: Annotated[
        float | None, Option("end a request with 408 after this many seconds, waiting or running")
    ] = None
    body_timeout_s: Annotated[
        float, Option("upper bound of seconds that a request body may take to arrive")
    ] = 60.0
    stall_timeout_s: Annotated[
        float, Option("disconnect a client that has read nothing for this many seconds")
    ] = 30.0
    resume_timeout_s: Annotated[
        float,
        Option(
            "seconds that responses wait for a restarted engine to continue them; 0: they fail at "
            "once"
        ),
    ] = 60.0
    drain_timeout_s: Annotated[
        float, Option("seconds that running requests get to finish when the server shuts down")
    ] = 30.0

    @classmethod
    def from_values(
        cls, values: Mapping[str, Any], environment: Mapping[str, str] = os.environ
    ) -> "HttpOptions":
        """Returns the options with these values, by `Flag.dest`, and API keys from the environment.

        Raises:
            UsageError: a value is out of range. The message names the flag.
            TlsError: a certificate cannot be used.
        """
        from openinfer_frontend import FrontendConfig

        options = to_struct(cls, values)
        if API_KEY in environment and not options.api_keys:
            options = replace(options, api_keys=(environment[API_KEY],))
        if ADMIN_API_KEY in environment and options.admin_api_key is None:
            options = replace(options, admin_api_key=environment[ADMIN_API_KEY])
        if options.drain_timeout_s < 0:
            raise UsageError("--drain-timeout-s must not be negative")
        if options.ssl_certfile is None and (options.ssl_keyfile or options.ssl_ca_certs):
            raise UsageError("--ssl-keyfile and --ssl-ca-certs need --ssl-certfile")
        try:
            FrontendConfig(**options.for_config() | {"served_model_names": ("any",), "version": ""})
        except ValueError as error:
            name, _, rest = str(error).partition(" ")
            flag = next((f.names[0] for f in HTTP_FLAGS if f.dest == name), name)
            raise UsageError(f"{flag} {rest}") from error
        options.tls()
        return options

    def for_config(self) -> dict[str, Any]:
        """Returns the fields that `FrontendConfig` takes, by name."""
        from openinfer_frontend import FrontendConfig

        names = FrontendConfig.__dataclass_fields__
        return {name: value for name, value in asdict(self).items() if name in names}

    def tls(self) -> "Tls | None":
        """Returns certificate and key; None for plain HTTP."""
        if self.ssl_certfile is None:
            return None
        from openinfer_frontend import Tls

        return Tls(certfile=self.ssl_certfile, keyfile=self.ssl_keyfile, ca_certs=self.ssl_ca_certs)


HTTP_FLAGS = flags_of(HttpOptions, "http")
