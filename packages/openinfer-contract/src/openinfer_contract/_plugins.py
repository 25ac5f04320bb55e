"""Entry points: what other packages bring, and what one of them may break."""

import logging
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from openinfer_contract.errors import PluginError

_logger = logging.getLogger("openinfer")
_T = TypeVar("_T")


class PluginGroup(Generic[_T]):
    """One entry point group. A plug-in that does not load fails whoever uses it, and nobody else.

    Of several plug-ins with one name, that of the first package on the path counts.
    """

    def __init__(self, name: str, what: str, make: Callable[[Any], _T]) -> None:
        """Looks at nothing yet.

        Args:
            name: of the group, such as `openinfer.models`.
            what: what one of its plug-ins is, for messages: "model line".
            make: turns what an entry point names into what its users want. Whatever it raises is
                the plug-in's fault.
        """
        self.name = name
        self.what = what
        self._make = make
        self._warned: set[str] = set()

    def names(self) -> tuple[str, ...]:
        """What is installed, sorted. Imports nothing."""
        return tuple(sorted(self._points()))

    def load(self, name: str) -> _T:
        """One plug-in.

        Raises:
            KeyError: it is not installed.
            PluginError: it cannot be loaded; names package and entry point.
        """
        return self._loaded(self._points()[name])

    def load_all(self) -> dict[str, _T]:
        """Those that load, by name; the log is warned of each of the others once."""
        found: dict[str, _T] = {}
        for name, loaded in self._try_all():
            if not isinstance(loaded, PluginError):
                found[name] = loaded
            elif name not in self._warned:
                self._warned.add(name)
                _logger.warning("%s; it is left out", loaded)
        return found

    def broken(self) -> dict[str, PluginError]:
        """Those that do not load, and why, by name. Who asks need not be warned any more."""
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
        except Exception as error:  # a stranger's module may raise anything
            package = f"{point.dist.name} {point.dist.version}" if point.dist else "no package"
            raise PluginError(self.what, point.name, package, point.value, error) from error
