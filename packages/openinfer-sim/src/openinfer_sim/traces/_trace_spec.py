"""Parser of traces as the command line spells them: `poisson:rate=8,duration=60,input=1024`."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from openinfer_sim.errors import TraceError
from openinfer_sim.traces._mooncake import read_mooncake
from openinfer_sim.traces._trace import Trace, check_seed
from openinfer_sim.traces._workloads import (
    AgentMix,
    RequestMix,
    agent_trace,
    burst_trace,
    closed_trace,
    poisson_trace,
)


def _poisson(*, seed: int, rate: float = 8.0, duration: float = 60.0, **mix: Any) -> Trace:
    return poisson_trace(rate=rate, duration=duration, mix=RequestMix(**mix), seed=seed)


def _bursts(
    *, seed: int, rate: float = 8.0, duration: float = 60.0, size: int = 32, **mix: Any
) -> Trace:
    return burst_trace(rate=rate, duration=duration, size=size, mix=RequestMix(**mix), seed=seed)


def _closed(*, seed: int, concurrency: int = 8, requests: int = 4, **mix: Any) -> Trace:
    return closed_trace(
        concurrency=concurrency, requests=requests, mix=RequestMix(**mix), seed=seed
    )


def _agents(*, seed: int, sessions: int = 8, ramp: float = 60.0, **mix: Any) -> Trace:
    return agent_trace(sessions=sessions, ramp=ramp, mix=AgentMix(**mix), seed=seed)


def _mooncake(*, seed: int, path: str = "", speed: float = 1.0, limit: int | None = None) -> Trace:
    if not path:
        raise TraceError("mooncake needs path=FILE")
    return read_mooncake(path, speed=speed, limit=limit, seed=seed)


_KINDS: Mapping[str, tuple[Callable[..., Trace], type | None]] = {
    "poisson": (_poisson, RequestMix),
    "bursts": (_bursts, RequestMix),
    "closed": (_closed, RequestMix),
    "agents": (_agents, AgentMix),
    "mooncake": (_mooncake, None),
}


def trace_kinds() -> dict[str, dict[str, Any]]:
    """Returns the options of each kind of trace, with their defaults.

    docs/guides/scheduler.md explains them.
    """
    return {kind: _defaults(kind) for kind in _KINDS}


def parse_trace(text: str, *, seed: int = 0) -> Trace:
    """Makes the trace that `KIND:option=value,...` describes.

    Args:
        text: A kind of `trace_kinds`, and any of its options.
        seed: Seed of arrivals, lengths and content.

    Raises:
        TraceError: A kind or an option is unknown, or a value is invalid.
    """
    check_seed(seed)
    kind, _, rest = text.partition(":")
    if kind not in _KINDS:
        raise TraceError(f"unknown trace {kind!r}; known are: {', '.join(_KINDS)}")
    known = _options(kind)
    values: dict[str, Any] = {}
    for item in filter(None, rest.split(",")):
        name, has_value, value = item.partition("=")
        if name not in known:
            raise TraceError(
                f"trace {kind}: unknown option {name!r}; known are: {', '.join(known)}"
            )
        if not has_value:
            raise TraceError(f"trace {kind}: {name} has no value; write {name}=...")
        if name in values:
            raise TraceError(f"trace {kind}: {name} is given twice")
        values[name] = _convert(kind, name, value, known[name])
    return _KINDS[kind][0](seed=seed, **values)


def _defaults(kind: str) -> dict[str, Any]:
    """Returns options and their defaults: parameters of the function, then fields of its mix."""
    function, mix = _KINDS[kind]
    own = {
        name: parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and name != "seed"
    }
    return own | {field.name: field.default for field in (fields(mix) if mix else ())}


def _options(kind: str) -> dict[str, type]:
    """Returns options and their types."""
    return {n: int if value is None else type(value) for n, value in _defaults(kind).items()}


def _convert(kind: str, name: str, value: str, wanted: type) -> Any:
    try:
        return wanted(value)
    except ValueError as error:
        article = "a whole number" if wanted is int else "a number"
        raise TraceError(f"trace {kind}: {name} must be {article}, not {value!r}") from error
