"""What an operator decides about HTTP: keys, origins, bounds, timeouts, certificates.

The front end is imported by who asks for more than the defaults: `serve` needs these first.
"""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from openinfer.errors import UsageError
from openinfer.options._server_flags import SERVER_FLAGS

if TYPE_CHECKING:
    from openinfer_frontend import Tls

API_KEY = "OPENINFER_API_KEY"
ADMIN_API_KEY = "OPENINFER_ADMIN_API_KEY"


class HttpOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Fields are those of `FrontendConfig` and of `serve`, the flags' destinations."""

    api_keys: tuple[str, ...] = ()
    admin_api_key: str | None = None
    allowed_origins: tuple[str, ...] = ()
    reasoning_field: str = "both"
    trust_request_chat_template: bool = False
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    ssl_ca_certs: str | None = None
    max_body_bytes: int = 16 << 20
    max_in_flight: int = 8192
    request_timeout_s: float | None = None
    body_timeout_s: float = 60.0
    stall_timeout_s: float = 30.0
    resume_timeout_s: float = 60.0
    drain_timeout_s: float = 30.0
    metrics_prefix: str = "vllm:"

    @classmethod
    def from_values(
        cls, values: Mapping[str, Any], environment: Mapping[str, str] = os.environ
    ) -> "HttpOptions":
        """Takes options by `FLAGS` destination; keys that are not among them from the environment.

        Raises:
            UsageError: naming what cannot be meant.
            TlsError: a certificate cannot be used.
        """
        from openinfer_frontend import FrontendConfig

        given = {name: values[name] for name in cls.__struct_fields__ if name in values}
        for name in ("api_keys", "allowed_origins"):
            if name in given:
                given[name] = tuple(given[name])
        if API_KEY in environment and not given.get("api_keys"):
            given["api_keys"] = (environment[API_KEY],)
        if ADMIN_API_KEY in environment:
            given.setdefault("admin_api_key", environment[ADMIN_API_KEY])
        options = cls(**given)
        if options.drain_timeout_s < 0:
            raise UsageError("--drain-timeout-s must not be negative")
        if options.ssl_certfile is None and (options.ssl_keyfile or options.ssl_ca_certs):
            raise UsageError("--ssl-keyfile and --ssl-ca-certs need --ssl-certfile")
        try:
            FrontendConfig(served_model_names=("any",), version="", **options.for_config())
        except ValueError as error:
            name, _, rest = str(error).partition(" ")
            flag = next((f.spellings[0] for f in SERVER_FLAGS if f.dest == name), name)
            raise UsageError(f"{flag} {rest}") from error
        options.tls()
        return options

    def for_config(self) -> dict[str, Any]:
        """The part that `FrontendConfig` takes."""
        from openinfer_frontend import FrontendConfig

        names = FrontendConfig.__dataclass_fields__
        return {
            name: value for name, value in msgspec.structs.asdict(self).items() if name in names
        }

    def tls(self) -> "Tls | None":
        """Certificate and key, None for plain HTTP."""
        if self.ssl_certfile is None:
            return None
        from openinfer_frontend import Tls

        return Tls(certfile=self.ssl_certfile, keyfile=self.ssl_keyfile, ca_certs=self.ssl_ca_certs)
