"""One simulated engine: the real loop, scheduler and cache on a virtual clock."""

from openinfer_contract import EventSink, GenerateRequest
from openinfer_engine import EngineOptions, assemble
from openinfer_sim._setup import Setup
from openinfer_sim.device._clock import VirtualClock
from openinfer_sim.device._content import Content
from openinfer_sim.device._executor import HostCosts, ModelledExecutor
from openinfer_sim.device._figures import load_figures


class Replica:
    """An engine and the front process before it.

    The front process takes requests one after the other; each costs it `request_s` and
    `prompt_token_s` a token. Half of `latency_s` lies before the engine, half behind it.

    Args:
        setup: model, device, limits.
        content: what it answers.
        options: from `setup.engine_options`.

    Attributes:
        clock: the engine's; other replicas have their own.
        return_s: from the engine to the client.
    """

    def __init__(
        self,
        setup: Setup,
        content: Content,
        options: EngineOptions,
    ) -> None:
        overheads = load_figures().overheads
        info = setup.executor_info()
        self.clock = VirtualClock()
        self.return_s = overheads.latency_s / 2
        self._overheads = overheads
        self._front_free_at = 0.0
        self._executor = ModelledExecutor(
            info,
            setup.cost_model(),
            content,
            self.clock,
            HostCosts(step_s=overheads.host_step_s, row_s=overheads.host_row_s),
        )
        self._loop = assemble(self._executor, options, clock=self.clock, raises_policy_errors=True)
        self._num_skippable = 0
        """Steps that only repeat the one in flight."""

    def go_on(self, until: float) -> bool:
        """An iteration of the loop, or all that are alike and begin before `until`.

        Returns:
            False: nothing could be done.
        """
        loop = self._loop
        if not self._num_skippable:
            is_done = loop.step()
        else:
            num_steps, columns = self._executor.run_decode_steps(self._num_skippable, until)
            loop.skip_decode_steps(columns, num_steps)
            is_done = True
        self._num_skippable = loop.num_skippable_steps
        return is_done

    @property
    def quiet_until(self) -> float:
        """Before this time it samples but tokens that nobody acts on, unless a request comes."""
        if not self._num_skippable:
            return self.clock.now
        return self._executor.earliest_end(self._num_skippable)

    @property
    def step_times(self) -> list[float]:
        """When each token of an event that has several was sampled."""
        return self._executor.step_times

    @property
    def has_work(self) -> bool:
        """Whether `go_on` should be called."""
        return self._loop.has_work

    @property
    def is_idle(self) -> bool:
        """Whether nothing is held: no request, no slot, every block free or evictable."""
        return not self._loop.has_work and self._loop.load().is_idle

    def receive(self, now: float, num_prompt_tokens: int) -> float:
        """A client sends a prompt at `now`; returns when the engine can read it."""
        overheads = self._overheads
        begin = max(self._front_free_at, now + overheads.latency_s / 2)
        cost = overheads.request_s + overheads.prompt_token_s * num_prompt_tokens
        self._front_free_at = begin + cost
        return self._front_free_at

    def submit(self, now: float, request: GenerateRequest, sink: EventSink) -> None:
        """Hands a request to the engine; an idle one wakes at `now`."""
        self.clock.wait_until(now)
        self._loop.submit(request, sink)
        self._num_skippable = 0
