"""Which handler answers which method and path."""

from collections.abc import Awaitable, Callable

from openinfer_frontend._exchange import Exchange
from openinfer_frontend.errors import ApiError

Handler = Callable[[Exchange], Awaitable[None]]


class Router:
    """Exact paths, and paths that start with a prefix; HEAD is answered as GET."""

    def __init__(self) -> None:
        self._exact: dict[str, dict[str, Handler]] = {}
        self._prefixes: dict[str, dict[str, Handler]] = {}

    def add(self, method: str, path: str, handler: Handler) -> None:
        """Adds a route; a path that ends in `/` matches everything below it."""
        table = self._prefixes if path.endswith("/") else self._exact
        table.setdefault(path, {})[method] = handler

    def find(self, method: str, path: str) -> Handler:
        """The handler of a request.

        Raises:
            ApiError: 404 for an unknown path, 405 for an unknown method on a known one.
        """
        methods = self._exact.get(path)
        if methods is None:
            methods = next(
                (m for prefix, m in self._prefixes.items() if path.startswith(prefix)), None
            )
        if methods is None:
            raise ApiError(404, f"there is no route {path[:200]}")
        handler = methods.get("GET" if method == "HEAD" else method)
        if handler is None:
            allowed = ", ".join(sorted(methods))
            raise ApiError(405, f"this route takes {allowed}", allow=allowed)
        return handler
