"""One row of the table of flags."""

from dataclasses import dataclass
from typing import Literal

Scope = Literal["engine", "frontend", "server"]
Kind = Literal["str", "int", "float", "count", "switch", "list", "dtype", "json"]


@dataclass(frozen=True, slots=True)
class Flag:
    """One option and every spelling of it."""

    dest: str
    names: tuple[str, ...]
    kind: Kind
    scope: Scope
    help: str
    off: tuple[str, ...] = ()
    """Spellings that switch a "switch" off."""
    choices: tuple[str, ...] = ()

    @property
    def spellings(self) -> tuple[str, ...]:
        """All of them, those that switch it off included."""
        return (*self.names, *self.off)
