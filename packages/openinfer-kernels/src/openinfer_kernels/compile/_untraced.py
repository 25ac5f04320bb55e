"""torch's meta device without torch's compiler.

Many operators on the meta device are Python functions that ask the compiler whether it is tracing
them. It never is here, but the question imports it, which takes longer than all the operators.
"""

import importlib
import sys
from types import ModuleType
from typing import Any


def _as_it_is(asked: Any, *_: object, **__: object) -> Any:
    return asked


class _Symbol:
    """What no number here is."""


_ANSWERS: dict[str, dict[str, Any]] = {
    "torch._dynamo": {"disable": _as_it_is},
    "sympy": {"Basic": _Symbol},
    "torch.fx.experimental.symbolic_shapes": {
        "expect_true": bool,
        "guard_or_false": bool,
        "guard_or_true": bool,
        "guard_size_oblivious": bool,
        "statically_known_true": bool,
        "sym_and": lambda *conditions: all(conditions),
        "sym_or": lambda *conditions: any(conditions),
        "has_hint": lambda size: True,
        "size_hint": _as_it_is,
        "is_nested_int": lambda size: False,
    },
}


def leave_out_compiler() -> None:
    """Keeps this process from importing torch's compiler just to hear that nothing is traced.

    For a process that does nothing else with torch. What it asks for besides is imported.
    """
    for name, answers in _ANSWERS.items():
        if name not in sys.modules:
            sys.modules[name] = _Untraced(name, answers)


class _Untraced(ModuleType):
    def __init__(self, name: str, answers: dict[str, Any]) -> None:
        super().__init__(name)
        self.__dict__.update(answers)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        sys.modules.pop(self.__name__, None)
        return getattr(importlib.import_module(self.__name__), name)
