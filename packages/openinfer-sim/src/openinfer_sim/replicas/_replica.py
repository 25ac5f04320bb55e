"""Simulated engine: the real loop, scheduler and cache on a virtual clock."""

from openinfer_contract import EventSink, GenerateRequest
from openinfer_engine import EngineOptions, assemble
from openinfer_sim._setup import Setup
from openinfer_sim.device._clock import VirtualClock
from openinfer_sim.device._content import Content
from openinfer_sim.device._executor import HostCosts, ModelledExecutor
from openinfer_sim.device._figures import load_figures


class Replica:
    """One engine and its front process.

    The front process handles one request at a time. A request takes `request_s`, plus
    `prompt_token_s` for each prompt token. Half of the round trip `latency_s` passes on the way to
    the engine, half on the way back.

    Args:
        setup: Model, device and limits.
        content: Output tokens.
        options: Result of `setup.engine_options`.

    Attributes:
        clock: Virtual clock of this engine alone.
        return_s: Seconds from the engine to the client.
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
        """Steps after the one in flight that only decode the same rows."""

    def advance(self, until: float) -> bool:
        """Runs one iteration of the loop, or all skippable decode steps that begin before `until`.

        Returns:
            False if there was nothing to do.
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
        """Time before which no request starts or ends, unless a new request arrives.

        Until then the replica only decodes: no client acts on these tokens.
        """
        if not self._num_skippable:
            return self.clock.now
        return self._executor.earliest_end(self._num_skippable)

    @property
    def step_times(self) -> list[float]:
        """Times at which the steps of the last decode run were completed."""
        return self._executor.step_times

    @property
    def has_work(self) -> bool:
        """Whether `advance` has something to do."""
        return self._loop.has_work

    @property
    def is_idle(self) -> bool:
        """Whether the engine holds no request and no slot, and every block is free or evictable."""
        return not self._loop.has_work and self._loop.load().is_idle

    def receive(self, now: float, num_prompt_tokens: int) -> float:
        """Passes a prompt through the front process.

        Returns the time at which the engine can read a prompt that the client sends at `now`.
        """
        overheads = self._overheads
        begin = max(self._front_free_at, now + overheads.latency_s / 2)
        cost = overheads.request_s + overheads.prompt_token_s * num_prompt_tokens
        self._front_free_at = begin + cost
        return self._front_free_at

    def submit(self, now: float, request: GenerateRequest, sink: EventSink) -> None:
        """Submits a request to the engine. An idle engine wakes at `now`."""
        self.clock.wait_until(now)
        self._loop.submit(request, sink)
        self._num_skippable = 0
