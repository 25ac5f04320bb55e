"""The table of routes: which handler answers which method and path, for whom, in what dialect."""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from openinfer_frontend.errors import ApiError
from openinfer_frontend.http._http_exchange import HttpExchange
from openinfer_frontend.protocols._dialect import OPENAI, Dialect
from openinfer_frontend.protocols._generation_request import RequestModel

Handler = Callable[[HttpExchange], Awaitable[None]]
Access = Literal["open", "user", "admin"]
"""Who may call a route: anybody, whoever has an API key, whoever has the admin key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One method on one path; what the OpenAPI description is made of."""

    method: Literal["GET", "POST"]
    path: str
    """Ends in `/{id}` where everything below it matches."""
    handler: Handler
    summary: str
    body: type[RequestModel] | None = None
    """Of what a request's body is an instance; None: it is not read."""
    queries: tuple[tuple[str, str], ...] = ()
    """Parameters of the query: name, and what it says."""
    access: Access = "user"
    dialect: Dialect = OPENAI


class Router:
    """Exact paths, and paths that start with a prefix; HEAD is answered as GET."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(routes)
        self._exact: dict[str, dict[str, Route]] = {}
        self._prefixes: dict[str, dict[str, Route]] = {}
        for route in self.routes:
            prefix = route.path.removesuffix("{id}")
            table = self._exact if prefix == route.path else self._prefixes
            table.setdefault(prefix, {})[route.method] = route

    def find(self, method: str, path: str) -> Route:
        """The route of a request.

        Raises:
            ApiError: 404 for an unknown path, 405 for an unknown method on a known one.
        """
        methods = self._methods(path)
        if methods is None:
            raise ApiError(404, f"there is no route {path[:200]}")
        route = methods.get("GET" if method == "HEAD" else method)
        if route is None:
            allowed = ", ".join(sorted(methods))
            raise ApiError(405, f"this route takes {allowed}", allow=allowed)
        return route

    def dialect(self, path: str) -> Dialect:
        """How a request to this path expects its errors, whatever is wrong with it."""
        methods = self._methods(path)
        return OPENAI if methods is None else next(iter(methods.values())).dialect

    def _methods(self, path: str) -> dict[str, Route] | None:
        methods = self._exact.get(path)
        if methods is not None:
            return methods
        below = (m for prefix, m in self._prefixes.items() if path.startswith(prefix))
        return next(below, None)
