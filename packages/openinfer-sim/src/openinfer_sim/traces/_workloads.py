"""Random traces: Poisson arrivals, bursts, closed loops, and agents with many turns."""

import math
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from openinfer_sim.errors import TraceError
from openinfer_sim.traces._trace import Segment, Session, Trace, Turn

_ALWAYS_SHOWN = ("input", "output", "turns")
_MAX_REQUESTS = 1 << 24
_MAX_TOKENS = 1 << 22
"""Upper bound of the tokens of one segment or one output. It bounds memory, because a prompt is
built before an engine can refuse it.
"""
_MAX_SECONDS = 1e8
"""Upper bound of times: three years. A float of later times is too coarse to resolve a step."""
_SHARED_KEY = 1 << 62
"""First segment key of the system prompts that sessions share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMix:
    """Distribution of single requests.

    Lengths are log-normal around a median. `spread` is the standard deviation of the logarithm; 0
    gives one length. In a closed loop, tenant and priority are drawn once per client.
    """

    input: int = 1024
    output: int = 128
    spread: float = 0.0
    shared: int = 0
    """Number of leading prompt tokens that all requests of a tenant share."""
    tenants: int = 1
    skew: float = 0.0
    """Tenant i (from 1) sends in proportion to i ** -skew."""
    priorities: int = 1
    """Number of priorities. Each request draws one uniformly."""

    def __post_init__(self) -> None:
        _check_mix(
            self,
            at_least_one=("input", "output", "tenants", "priorities"),
            not_negative=("spread", "shared", "skew"),
            tokens=("input", "output", "shared"),
        )
        if self.tenants > _MAX_REQUESTS:
            raise TraceError(f"tenants must be at most {_MAX_REQUESTS}, not {self.tenants}")


def poisson_trace(*, rate: float, duration: float, mix: RequestMix, seed: int) -> Trace:
    """Makes independent requests that arrive at `rate` a second for `duration` seconds."""
    _check_positive(rate=rate, duration=duration)
    _check_seconds(duration=duration)
    _check_requests(rate * duration, "rate or duration")
    rng = np.random.default_rng(seed)
    num = int(rng.poisson(rate * duration))
    starts = np.sort(rng.random(num) * duration)
    name = _name("poisson", mix, rate=rate, duration=duration)
    return Trace(name=name, sessions=_single_requests(starts, mix, rng), seed=seed)


def burst_trace(*, rate: float, duration: float, size: int, mix: RequestMix, seed: int) -> Trace:
    """Makes requests with a mean of `rate` a second, in bursts of `size` that arrive at once."""
    _check_positive(rate=rate, duration=duration, size=size)
    _check_seconds(duration=duration)
    _check_requests(max(rate * duration, size), "rate, duration or size")
    rng = np.random.default_rng(seed)
    num = int(rng.poisson(rate * duration / size))
    starts = np.repeat(np.sort(rng.random(num) * duration), size)
    name = _name("bursts", mix, rate=rate, duration=duration, size=size)
    return Trace(name=name, sessions=_single_requests(starts, mix, rng), seed=seed)


def closed_trace(*, concurrency: int, requests: int, mix: RequestMix, seed: int) -> Trace:
    """Makes `concurrency` clients. Each sends its next request when the one before has ended."""
    _check_positive(concurrency=concurrency, requests=requests)
    _check_requests(concurrency * requests, "concurrency or requests")
    rng = np.random.default_rng(seed)
    starts = np.zeros(concurrency * requests)
    singles = _single_requests(starts, mix, rng, num_clients=concurrency)
    sessions = tuple(
        Session(
            session_id=f"client-{i}",
            start_s=0.0,
            tenant=first.tenant,
            priority=first.priority,
            has_history=False,
            turns=tuple(single.turns[0] for single in singles[i::concurrency]),
        )
        for i, first in enumerate(singles[:concurrency])
    )
    name = _name("closed", mix, concurrency=concurrency, requests=requests)
    return Trace(name=name, sessions=sessions, seed=seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentMix:
    """Distribution of coding agents, after published figures.

    Over many sessions the defaults give: median 43 turns a session, median prompt 142,000 tokens,
    median output 444 tokens, more than 96 % of prompt tokens seen before.
    """

    turns: int = 43
    """Median number of turns of a session."""
    turns_spread: float = 0.5
    output: int = 444
    """Median number of output tokens of a turn."""
    output_spread: float = 0.7
    system: int = 24_000
    """Number of tokens of a system prompt with its tools."""
    systems: int = 4
    """Number of different system prompts. Sessions use them in turn."""
    context: int = 45_000
    """Median number of tokens that a session reads before its first turn."""
    context_spread: float = 0.5
    result: int = 1_650
    """Median number of tokens that a tool or a user adds before each later turn."""
    result_spread: float = 0.8
    think: float = 4.0
    """Median seconds between the end of a turn and the next turn, while tools run."""
    think_spread: float = 1.0
    window: int = 400_000
    """Upper bound of prompt and output tokens of a request. A session ends before it would exceed
    it.
    """

    def __post_init__(self) -> None:
        spreads = ("turns_spread", "output_spread", "context_spread", "result_spread")
        _check_mix(
            self,
            at_least_one=("turns", "output", "system", "systems", "context", "result", "window"),
            not_negative=(*spreads, "think", "think_spread"),
            tokens=("output", "system", "context", "result"),
        )
        _check_seconds(think=self.think)
        if self.window < self.system + 2:
            raise TraceError(
                f"window must hold the {self.system} tokens of a system prompt, one of a context "
                f"and one of an answer, not {self.window}"
            )


def agent_trace(*, sessions: int, ramp: float, mix: AgentMix, seed: int) -> Trace:
    """Makes sessions that start within `ramp` seconds and take turns until they end."""
    _check_positive(sessions=sessions)
    _check_requests(sessions * mix.turns, "sessions or turns")
    if not 0 <= ramp < math.inf:
        raise TraceError(f"ramp must not be negative, not {ramp}")
    _check_seconds(ramp=ramp)
    rng = np.random.default_rng(seed)
    starts = np.sort(rng.random(sessions) * ramp)
    agents = tuple(_agent(i, float(start), mix, rng) for i, start in enumerate(starts))
    name = _name("agents", mix, sessions=sessions, ramp=ramp)
    return Trace(name=name, sessions=agents, seed=seed)


def _agent(index: int, start_s: float, mix: AgentMix, rng: np.random.Generator) -> Session:
    num_turns = _length(mix.turns, mix.turns_spread, rng)
    outputs = _lengths(mix.output, mix.output_spread, num_turns, rng)
    results = _lengths(mix.result, mix.result_spread, num_turns, rng)
    waits = np.minimum(_drawn(mix.think, mix.think_spread, num_turns, rng), _MAX_SECONDS)
    # The first request must fit the window, whatever its lengths were drawn as.
    outputs[0] = min(outputs[0], mix.window - mix.system - 1)
    room = mix.window - mix.system - int(outputs[0])
    opening = min(_length(mix.context, mix.context_spread, rng), room)
    system = index % mix.systems
    turns: list[Turn] = []
    used = 0
    for number in range(num_turns):
        key = index * (1 << 20) + number
        segments: tuple[Segment, ...] = (Segment(key, int(results[number])),)
        if not turns:
            segments = (Segment(_SHARED_KEY + system, mix.system), Segment(key, opening))
        turn = Turn(float(waits[number]) if turns else 0.0, segments, int(outputs[number]))
        used += turn.num_new_tokens + turn.num_output_tokens
        if turns and used > mix.window:
            break
        turns.append(turn)
    return Session(
        session_id=f"agent-{index}", start_s=start_s, tenant=f"system-{system}", turns=tuple(turns)
    )


def _name(kind: str, mix: RequestMix | AgentMix, **own: float) -> str:
    """Returns the text from which `parse_trace` makes the trace, without most default options."""
    shown = own | {
        field.name: getattr(mix, field.name)
        for field in fields(mix)
        if field.name in _ALWAYS_SHOWN or getattr(mix, field.name) != field.default
    }
    return f"{kind}:" + ",".join(f"{name}={value:.12g}" for name, value in shown.items())


def _single_requests(
    starts: npt.NDArray[np.float64],
    mix: RequestMix,
    rng: np.random.Generator,
    *,
    num_clients: int | None = None,
) -> tuple[Session, ...]:
    """Returns one session per start time.

    In a closed loop of `num_clients`, session i belongs to client i % num_clients.
    """
    num = len(starts)
    if not num:
        raise TraceError("the trace has no request: raise rate or duration")
    inputs = _lengths(mix.input, mix.spread, num, rng)
    outputs = _lengths(mix.output, mix.spread, num, rng)
    shares = np.arange(1, mix.tenants + 1, dtype=float) ** -mix.skew
    tenants = rng.choice(mix.tenants, num, p=shares / shares.sum())
    priorities = rng.integers(0, mix.priorities, num)
    if num_clients is not None:
        clients = np.arange(num) % num_clients
        tenants, priorities = tenants[clients], priorities[clients]
    sessions = []
    for i in range(num):
        own = Segment(i, int(inputs[i]))
        shared = (Segment(_SHARED_KEY + int(tenants[i]), mix.shared),) if mix.shared else ()
        sessions.append(
            Session(
                session_id=f"request-{i}",
                start_s=float(starts[i]),
                tenant=f"tenant-{tenants[i]}",
                priority=int(priorities[i]),
                turns=(Turn(0.0, (*shared, own), int(outputs[i])),),
            )
        )
    return tuple(sessions)


def _lengths(
    median: int, spread: float, num: int, rng: np.random.Generator
) -> npt.NDArray[np.int64]:
    drawn = _drawn(median, spread, num, rng)
    lengths: npt.NDArray[np.int64] = np.clip(np.rint(drawn), 1, _MAX_TOKENS).astype(np.int64)
    return lengths


def _drawn(
    median: float, spread: float, num: int, rng: np.random.Generator
) -> npt.NDArray[np.float64]:
    """Returns log-normal numbers; infinite if a float overflows."""
    with np.errstate(over="ignore"):
        factors: npt.NDArray[np.float64] = np.exp(spread * rng.standard_normal(num))
    return median * factors if median else np.zeros(num)


def _length(median: int, spread: float, rng: np.random.Generator) -> int:
    return int(_lengths(median, spread, 1, rng)[0])


def _check_mix(
    mix: object,
    *,
    at_least_one: tuple[str, ...],
    not_negative: tuple[str, ...],
    tokens: tuple[str, ...],
) -> None:
    for name in at_least_one:
        if getattr(mix, name) < 1:
            raise TraceError(f"{name} must be at least 1, not {getattr(mix, name)}")
    for name in not_negative:
        if not 0 <= getattr(mix, name) < math.inf:
            raise TraceError(f"{name} must not be negative, not {getattr(mix, name)}")
    for name in tokens:
        if getattr(mix, name) > _MAX_TOKENS:
            raise TraceError(f"{name} must be at most {_MAX_TOKENS}, not {getattr(mix, name)}")


def _check_positive(**values: float) -> None:
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise TraceError(f"{name} must be positive, not {value}")


def _check_requests(num: float, names: str) -> None:
    if num > _MAX_REQUESTS:
        raise TraceError(
            f"the trace has {num:.3g} requests; at most {_MAX_REQUESTS} are allowed: lower {names}"
        )


def _check_seconds(**values: float) -> None:
    for name, value in values.items():
        if value > _MAX_SECONDS:
            raise TraceError(f"{name} must be at most {_MAX_SECONDS:.0f} seconds, not {value:g}")
