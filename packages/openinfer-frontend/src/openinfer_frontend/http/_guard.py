"""API keys and cross-origin rules."""

import hashlib
import hmac
from collections.abc import Sequence

from openinfer_frontend._config import FrontendConfig
from openinfer_frontend.errors import ApiError
from openinfer_frontend.http._http_exchange import HttpExchange
from openinfer_frontend.http._router import Route

Headers = list[tuple[bytes, bytes]]
_PREFLIGHT_AGE_S = 600


class Guard:
    """The API keys and the cross-origin rules of one application; immutable.

    A user's route needs an API key, if keys are configured. An operator's route needs the admin
    key, or an API key if there is no admin key. The admin key opens every route.
    """

    def __init__(self, config: FrontendConfig) -> None:
        """Takes keys and origins from the configuration."""
        admin = () if config.admin_api_key is None else (config.admin_api_key,)
        users = (*config.api_keys, *admin) if config.api_keys else ()
        self._has_admin_key = bool(admin)
        self._users = [_digest(key) for key in users]
        self._admins = [_digest(key) for key in admin or config.api_keys]
        self._origins = frozenset(origin.encode() for origin in config.allowed_origins)

    def check(self, route: Route, exchange: HttpExchange) -> None:
        """Checks whether a request may call a route.

        Raises:
            ApiError: 401 without a valid key, 403 with a key that is valid for other routes only.
        """
        wanted = {"open": [], "user": self._users, "admin": self._admins}[route.access]
        if not wanted:
            return
        given = _key(exchange)
        name = "the admin key" if wanted is self._admins and self._has_admin_key else "an API key"
        if given is None:
            how = "Authorization: Bearer KEY, or x-api-key: KEY"
            raise ApiError(401, f"this route needs {name}: {how}")
        if _is_among(given, wanted):
            return
        if route.access == "admin" and _is_among(given, self._users):
            raise ApiError(403, "this route needs the admin key")
        raise ApiError(401, f"the key is not valid; this route needs {name}")

    def cors_headers(self, exchange: HttpExchange) -> Headers:
        """Returns headers that let a page of an allowed origin read the response."""
        origin = exchange.header("origin")
        if not self._origins or origin is None:
            return []
        vary = (b"vary", b"origin")
        if b"*" not in self._origins and origin.encode("latin-1") not in self._origins:
            return [vary]
        allowed = b"*" if b"*" in self._origins else origin.encode("latin-1")
        exposed = (b"access-control-expose-headers", b"x-request-id, retry-after")
        return [vary, (b"access-control-allow-origin", allowed), exposed]

    def preflight_headers(self, exchange: HttpExchange) -> Headers | None:
        """Returns the headers for a preflight request, or None if the request is not one."""
        asked = exchange.header("access-control-request-method")
        if exchange.method != "OPTIONS" or asked is None or not self._origins:
            return None
        headers = exchange.header("access-control-request-headers") or ""
        return [
            (b"access-control-allow-methods", b"GET, POST"),
            (b"access-control-allow-headers", headers.encode("latin-1")),
            (b"access-control-max-age", b"%d" % _PREFLIGHT_AGE_S),
        ]


def _key(exchange: HttpExchange) -> str | None:
    scheme, _, token = (exchange.header("authorization") or "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    return exchange.header("x-api-key")


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def _is_among(given: str, digests: Sequence[bytes]) -> bool:
    """Compares a key with all digests, in constant time."""
    digest = hashlib.sha256(given.encode("latin-1")).digest()
    return sum(hmac.compare_digest(digest, known) for known in digests) > 0
