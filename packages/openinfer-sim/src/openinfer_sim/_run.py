"""One trace, one policy, one answer."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from openinfer_sim._setup import Setup
from openinfer_sim.device._content import Content
from openinfer_sim.errors import SimError
from openinfer_sim.replicas._replica import Replica
from openinfer_sim.replicas._routing import make_router
from openinfer_sim.replicas._simulation import Simulation
from openinfer_sim.results._recorder import Recorder
from openinfer_sim.results._report import Report, make_report
from openinfer_sim.traces._trace import Trace, check_seed


@dataclass(frozen=True, slots=True)
class Run:
    """What a simulation gave.

    Attributes:
        report: summed up.
        recorder: request by request.
    """

    report: Report
    recorder: Recorder


def simulate(
    trace: Trace,
    policy: str = "fcfs",
    *,
    setup: Setup | None = None,
    num_replicas: int = 1,
    router: str = "least-loaded",
    has_prefix_cache: bool = True,
    seed: int = 0,
) -> Run:
    """Runs a trace over replicas of one setup, on a virtual clock.

    Deterministic: equal arguments give equal runs, to the bit.

    Args:
        trace: what clients do.
        policy: an installed scheduling policy, or `module:Class`; every replica has its own.
        setup: model, device, limits; a length limit that is not set becomes what the trace
            needs, as far as the cache can hold it.
        num_replicas: engines.
        router: which of them takes a request, by name.
        has_prefix_cache: whether engines keep prefixes.
        seed: of everything that is drawn here; the trace has its own.

    Raises:
        SimError: a name that is not known, or a setup that makes no sense.
        PolicyError: the policy raised or broke its contract; what is scored is the policy alone.
        UnknownPolicy: no such policy is installed or can be imported.
        UnusablePolicy: its class cannot be made without arguments, or lacks methods.
    """
    check_seed(seed)
    if not isinstance(policy, str):
        raise SimError(f"policy must be a name such as 'my_package:MyPolicy', not {policy!r}")
    if num_replicas < 1:
        raise SimError(f"replicas must be at least 1, not {num_replicas}")
    setup = setup or Setup()
    options = setup.named_options() | ({} if has_prefix_cache else {"enable_prefix_caching": False})
    setup = _with_length(setup, trace)
    vocab_size = setup.model_figures.vocab_size
    replicas = _replicas(
        setup, num_replicas, policy=policy, has_prefix_cache=has_prefix_cache, seed=seed
    )
    routing = make_router(router, num_replicas, seed=seed)
    recorder = Simulation(trace, replicas, routing, vocab_size=vocab_size).run()
    _check_idle(replicas)
    report = make_report(
        recorder,
        policy=policy,
        trace=trace.name,
        model=setup.model,
        device=setup.device,
        num_replicas=num_replicas,
        router=router if num_replicas > 1 else "",
        seed=seed,
        options=options,
    )
    return Run(report, recorder)


def _replicas(
    setup: Setup, num: int, *, policy: str, has_prefix_cache: bool, seed: int
) -> list[Replica]:
    content = Content(setup.model_figures.vocab_size, seed=seed)
    return [
        Replica(
            setup,
            content,
            setup.engine_options(policy=policy, has_prefix_cache=has_prefix_cache, seed=seed + i),
        )
        for i in range(num)
    ]


def _check_idle(replicas: Sequence[Replica]) -> None:
    for index, replica in enumerate(replicas):
        if not replica.is_idle:
            raise SimError(f"replica {index} still holds something when all requests have ended")


def _with_length(setup: Setup, trace: Trace) -> Setup:
    if setup.max_model_len is not None:
        return setup
    needed = max(setup.model_figures.max_model_len, trace.max_model_len)
    return replace(setup, max_model_len=min(needed, setup.num_cache_tokens))
