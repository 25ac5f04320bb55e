"""The table of routes, and the search for a request's route."""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from openinfer_frontend.errors import ApiError
from openinfer_frontend.http._http_exchange import HttpExchange
from openinfer_frontend.protocols._dialect import OPENAI, Dialect
from openinfer_frontend.protocols._generation_request import RequestModel

Handler = Callable[[HttpExchange], Awaitable[None]]
Method = Literal["GET", "POST"]
Access = Literal["open", "user", "admin"]
"""Access to a route: for everyone, with an API key, with the admin key."""


@dataclass(frozen=True, slots=True)
class Route:
    """One method on one path, with the facts for the OpenAPI description."""

    method: Method
    path: str
    """A path that ends in `/{id}` matches everything below it."""
    handler: Handler
    summary: str
    body: type[RequestModel] | None = None
    """The type of the request's body; None if the body is not read."""
    queries: tuple[tuple[str, str], ...] = ()
    """The query parameters, each with its description."""
    access: Access = "user"
    dialect: Dialect = OPENAI


class Router:
    """Finds routes by exact path and by prefix; HEAD is handled as GET."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(routes)
        self._exact: dict[str, dict[str, Route]] = {}
        self._prefixes: dict[str, dict[str, Route]] = {}
        for route in self.routes:
            prefix = route.path.removesuffix("{id}")
            table = self._exact if prefix == route.path else self._prefixes
            table.setdefault(prefix, {})[route.method] = route

    def find(self, method: str, path: str) -> Route:
        """Returns the route of a request.

        Raises:
            ApiError: 404 for an unknown path, 405 for a method that the path does not have.
        """
        methods = self._methods(path)
        if methods is None:
            raise ApiError(404, f"there is no route {path[:200]}; /docs lists the routes")
        route = methods.get("GET" if method == "HEAD" else method)
        if route is None:
            allowed = ", ".join(sorted(methods))
            raise ApiError(405, f"this route takes {allowed}", allow=allowed)
        return route

    def dialect(self, path: str) -> Dialect:
        """Returns the dialect of a path's errors, also for unknown methods."""
        methods = self._methods(path)
        return OPENAI if methods is None else next(iter(methods.values())).dialect

    def _methods(self, path: str) -> dict[str, Route] | None:
        methods = self._exact.get(path)
        if methods is not None:
            return methods
        below = (m for prefix, m in self._prefixes.items() if path.startswith(prefix))
        return next(below, None)
