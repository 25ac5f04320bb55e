"""Plug-ins: objects that installed packages offer through entry points."""

import logging
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from openinfer_contract.errors import PluginError

_logger = logging.getLogger("openinfer")
_T = TypeVar("_T")


class PluginGroup(Generic[_T]):
    """The plug-ins of one entry point group. A broken plug-in fails only the code that asks for it.

    If several packages offer a plug-in of the same name, the first one on the path is used.
    """

    def __init__(self, name: str, what: str, make: Callable[[Any], _T]) -> None:
        """Names a group. Plug-ins are imported later, when they are loaded.

        Args:
            name: name of the entry point group, such as `openinfer.models`.
            what: what one plug-in is called in messages, such as "model line".
            make: turns the object that an entry point names into the plug-in. An exception that it
                raises counts as a defect of the plug-in.
        """
        self.name = name
        self.what = what
        self._make = make
        self._warned: set[str] = set()

    def names(self) -> tuple[str, ...]:
        """Returns the names of the installed plug-ins, sorted. Imports nothing."""
        return tuple(sorted(self._points()))

    def load(self, name: str) -> _T:
        """Imports and returns one plug-in.

        Raises:
            KeyError: no plug-in of that name is installed.
            PluginError: it cannot be loaded. The message names its package and entry point.
        """
        return self._loaded(self._points()[name])

    def load_all(self) -> dict[str, _T]:
        """Returns all plug-ins that load, by name, and logs one warning for each of the others."""
        found: dict[str, _T] = {}
        for name, loaded in self._try_all():
            if not isinstance(loaded, PluginError):
                found[name] = loaded
            elif name not in self._warned:
                self._warned.add(name)
                _logger.warning("%s; continuing without it", loaded)
        return found

    def broken(self) -> dict[str, PluginError]:
        """Returns the error of each plug-in that does not load.

        `load_all` no longer warns about these plug-ins.
        """
        tried = self._try_all()
        found = {name: loaded for name, loaded in tried if isinstance(loaded, PluginError)}
        self._warned.update(found)
        return found

    def _points(self) -> dict[str, EntryPoint]:
        points: dict[str, EntryPoint] = {}
        for point in entry_points(group=self.name):
            points.setdefault(point.name, point)
        return points

    def _try_all(self) -> Iterator[tuple[str, _T | PluginError]]:
        for name, point in sorted(self._points().items()):
            try:
                yield name, self._loaded(point)
            except PluginError as error:
                yield name, error

    def _loaded(self, point: EntryPoint) -> _T:
        try:
            return self._make(point.load())
        except Exception as error:  # another package's module may raise anything
            package = f"{point.dist.name} {point.dist.version}" if point.dist else "no package"
            raise PluginError(self.what, point.name, package, point.value, error) from error
