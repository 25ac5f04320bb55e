"""The ops of this package and of installed packages, each with its back ends in their order.

An op is a package with a spec, a `plan_<op>` function and two tables: `ORDER` (device type to back
ends, the preferred one first; other devices take the order of "cuda") and `EXAMPLES` (name to spec,
for the report). A back end of an op is a module with `supports(spec, device)`, which returns None
for yes or the reason why not, and `plan(spec, device)`. In this package, a back end without
`supports` runs every spec on every device. It may have two more functions:
`regimes(spec, device)` names its kernels by number of rows, and `compile_cases()` names the kernels
that the compile gate compiles.

The ops of this package are the folders of `openinfer_kernels.ops`; the back end `triton` of an op
is its module `_triton`. Other packages add to them by entry points of the group
`openinfer.kernels`:

- `my_op = "my_package.my_op"` names an op. Its back ends are modules of that package, named alike.
- `rms_norm.fast = "my_package.fast_norm"` names a back end of an op. Its table `TRIED_BEFORE`
  (device type to the back end after it) gives it a place in the order: `{"cuda": "triton"}`.
"""

import hashlib
import importlib
import logging
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from openinfer_contract import PluginError, PluginGroup
from openinfer_kernels import ops
from openinfer_kernels.errors import BackendUnavailable

_logger = logging.getLogger(__name__)


def _module(loaded: Any) -> ModuleType:
    """Checks that an entry point names an op or a back end."""
    has_all = (("ORDER", "EXAMPLES"), ("supports", "plan", "TRIED_BEFORE"))
    if not isinstance(loaded, ModuleType) or not any(
        all(hasattr(loaded, name) for name in names) for names in has_all
    ):
        raise TypeError(
            "it is neither a module with ORDER and EXAMPLES (an op), "
            "nor one with supports, plan and TRIED_BEFORE (a back end)"
        )
    return loaded


KERNELS: PluginGroup[ModuleType] = PluginGroup("openinfer.kernels", "op or back end", _module)


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One op and its back ends.

    Attributes:
        name: Name of the op.
        order: Device type to names of back ends, the preferred one first.
        examples: Name to spec, for the report; the name "" stands for the op alone.
        modules: Back end to the name of its module.
        broken: Installed back ends that cannot be loaded, and why.
    """

    name: str
    order: dict[str, tuple[str, ...]]
    examples: Mapping[str, Any]
    modules: Mapping[str, str]
    broken: Mapping[str, str]

    @property
    def backends(self) -> tuple[str, ...]:
        """Back ends of the op on any device, the broken ones last."""
        named = dict.fromkeys(name for order in self.order.values() for name in order)
        return (*named, *self.broken)

    def order_on(self, device_type: str) -> tuple[str, ...]:
        """Returns the back ends to try on a device, the preferred one first."""
        return self.order.get(device_type, self.order["cuda"])

    def load(self, backend: str) -> ModuleType:
        """Returns the module of a back end.

        Raises:
            BackendUnavailable: The back end imports a package that is not installed, or the package
                that brings it is broken.
        """
        if backend in self.broken:
            raise BackendUnavailable(self.name, backend, self.broken[backend])
        try:
            return importlib.import_module(self.modules[backend])
        except ModuleNotFoundError as error:
            if error.name is None or error.name.startswith("openinfer_kernels"):
                raise
            reason = f"the package {error.name!r} is not installed"
            raise BackendUnavailable(self.name, backend, reason) from error


def op_names() -> tuple[str, ...]:
    """Returns the names of all ops: those of this package, then those of installed packages."""
    return tuple(dict.fromkeys((*_own_names(), *(n for n in _installed_names() if "." not in n))))


@cache
def find_op(name: str) -> Op:
    """Returns an op with its back ends. Installed packages are searched once in a process.

    Raises:
        KeyError: No package brings this op.
        PluginError: The package that brings it cannot be loaded.
    """
    is_own = name in _own_names()
    module = importlib.import_module(f"{ops.__name__}.{name}") if is_own else KERNELS.load(name)
    order = {device: tuple(backends) for device, backends in module.ORDER.items()}
    modules = {
        backend: f"{module.__name__}._{backend}"
        for backends in order.values()
        for backend in backends
    }
    broken: dict[str, str] = {}
    for point in _installed_names():
        op, _, backend = point.partition(".")
        if op != name or not backend:
            continue
        if backend in modules:
            _logger.warning("the entry point %s is ignored: %s has that back end", point, op)
            continue
        try:
            outside = KERNELS.load(point)
            _insert(order, backend, outside.TRIED_BEFORE)
        except (PluginError, ValueError) as error:
            _logger.warning("%s", error)
            broken[backend] = str(error)
        else:
            modules[backend] = outside.__name__
    return Op(name=name, order=order, examples=module.EXAMPLES, modules=modules, broken=broken)


def outside_digest() -> str:
    """Returns a digest of the ops and back ends of installed packages, by their sources."""
    digest = hashlib.sha256()
    installed = KERNELS.load_all() if _installed_names() else {}
    for name, module in sorted(installed.items()):
        digest.update(name.encode())
        files = [Path(module.__file__ or "")]
        for folder in getattr(module, "__path__", ()):
            files += sorted(Path(folder).rglob("*.py"))
        for file in files:
            digest.update(file.read_bytes())
    return digest.hexdigest()


@cache
def _own_names() -> tuple[str, ...]:
    return tuple(found.name for found in pkgutil.iter_modules(ops.__path__))


@cache
def _installed_names() -> tuple[str, ...]:
    """Returns the names of entry points. Searching 300 distributions takes 11 ms."""
    return KERNELS.names()


def _insert(
    order: dict[str, tuple[str, ...]], backend: str, tried_before: Mapping[str, str]
) -> None:
    """Inserts a back end into the order of each device; on an error it inserts none."""
    for device, other in tried_before.items():
        if other not in order.get(device, ()):
            raise ValueError(
                f"the back end {backend} is to be tried before {other!r} on {device}, "
                f"but the order there is {', '.join(order.get(device, ())) or 'empty'}"
            )
    for device, other in tried_before.items():
        at = order[device].index(other)
        order[device] = (*order[device][:at], backend, *order[device][at:])
