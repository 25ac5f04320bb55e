"""One simulation: a trace under one policy."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from openinfer_sim._setup import Setup
from openinfer_sim.device._content import Content
from openinfer_sim.errors import SimError
from openinfer_sim.replicas._replica import Replica
from openinfer_sim.replicas._routing import make_router
from openinfer_sim.replicas._simulation import Simulation
from openinfer_sim.results._recorder import Recorder
from openinfer_sim.results._report import Report, Slo, make_report
from openinfer_sim.traces._trace import Trace, check_seed


@dataclass(frozen=True, slots=True)
class Run:
    """Result of a simulation.

    Attributes:
        report: Summary of the run.
        recorder: Records of all requests.
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
    slo: Slo | None = None,
) -> Run:
    """Runs a trace over replicas of one setup, on a virtual clock.

    The run is deterministic: equal arguments give bit-identical records.

    Args:
        trace: Sessions of the clients, with their requests.
        policy: Name of an installed scheduling policy, or `module:Class`. Each replica has its own
            instance.
        setup: Model, device and limits. If `max_model_len` is None, it is the model's length, or
            the trace's longest request if that is longer, and at most what the cache can hold.
        num_replicas: Number of engines.
        router: Name of the router.
        has_prefix_cache: Whether engines cache prefixes.
        seed: Seed of output tokens, requests and router. The trace has a seed of its own.
        slo: Latency objective. The report has the share of requests that met it.

    Raises:
        SimError: A name is unknown, or the setup is invalid.
        PolicyError: The policy raised or broke its contract. Unlike a server, the simulator does
            not continue with another policy, because it scores this one.
        UnknownPolicy: The policy is not installed or cannot be imported.
        UnusablePolicy: The policy's class needs arguments or lacks methods.
    """
    _check_arguments(policy, num_replicas, seed)
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
        slo=slo,
    )
    return Run(report, recorder)


def _check_arguments(policy: object, num_replicas: int, seed: int) -> None:
    check_seed(seed)
    if not isinstance(policy, str):
        raise SimError(f"policy must be a name such as 'my_package:MyPolicy', not {policy!r}")
    if num_replicas < 1:
        raise SimError(f"replicas must be at least 1, not {num_replicas}")


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
            raise SimError(f"replica {index} is not idle although all requests have ended")


def _with_length(setup: Setup, trace: Trace) -> Setup:
    if setup.max_model_len is not None:
        return setup
    needed = max(setup.model_figures.max_model_len, trace.max_model_len)
    return replace(setup, max_model_len=min(needed, setup.num_cache_tokens))
