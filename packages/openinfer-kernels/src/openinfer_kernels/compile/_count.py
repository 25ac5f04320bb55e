"""How many kernels this process has compiled: none may be once others wait for it."""

from typing import Any

_num_compiled = 0


def num_compiled_kernels() -> int:
    """Triton kernels compiled by this process since the first call; not those from the cache."""
    try:
        import triton  # not every system has it
    except ModuleNotFoundError:
        return 0
    compilation = triton.knobs.compilation
    if getattr(compilation.listener, "__module__", None) != __name__:
        compilation.listener = _listener(compilation.listener)
    return _num_compiled


def _listener(former: Any) -> Any:
    def listen(*, cache_hit: bool, **details: Any) -> None:
        global _num_compiled
        _num_compiled += not cache_hit
        if former is not None:
            former(cache_hit=cache_hit, **details)

    return listen
