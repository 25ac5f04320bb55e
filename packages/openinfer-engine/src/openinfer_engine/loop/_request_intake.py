"""The intake: checks requests, and passes them to the scheduler at once or holds them first."""

from openinfer_contract import EngineInfo, GenerateRequest, Rejected, TokenEvent
from openinfer_engine.loop._command_queue import CommandQueue
from openinfer_engine.loop._event_sinks import EventSinks
from openinfer_engine.loop._grammar_queue import GrammarQueue
from openinfer_engine.loop._held_requests import HeldRequest, HeldRequests
from openinfer_engine.loop._request_checks import check_intake
from openinfer_scheduler import Scheduler

DRAIN_RETRY_AFTER_S = 5.0


class RequestIntake:
    """Takes requests in, and holds those that wait for a grammar or a pause.

    Used by the step thread.

    Args:
        scheduler: gets the requests.
        info: the limits and abilities that requests are checked against.
        sinks: delivers the rejection if a held request is rejected.
        grammars: compiles the requests' grammars; None if grammars are not supported.
        commands: holds the state of the engine: paused, draining.

    Attributes:
        num_rejected: requests rejected so far.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        info: EngineInfo,
        sinks: EventSinks,
        grammars: GrammarQueue | None,
        commands: CommandQueue,
    ) -> None:
        self._scheduler = scheduler
        self._info = info
        self._sinks = sinks
        self._grammars = grammars
        self._commands = commands
        self._held = HeldRequests(info.limits)
        self._after_pause: set[str] = set()
        """Held requests that arrived after a pause. The pause does not wait for them."""
        self.num_rejected = 0

    def __len__(self) -> int:
        """Returns the number of held requests."""
        return len(self._held)

    @property
    def has_live(self) -> bool:
        """Whether a request is held that a pause waits for."""
        return len(self._held) > len(self._after_pause)

    @property
    def num_tokens(self) -> int:
        """Prompt tokens of all held requests."""
        return self._held.num_tokens

    def take(self, request: GenerateRequest, now: float) -> Rejected | None:
        """Takes a request in and returns None, or returns why it is rejected."""
        rejected = self._check(request) or self._submit_or_hold(request, now)
        self.num_rejected += rejected is not None
        return rejected

    def submit_held(self, request_id: str) -> None:
        """Passes a held request to the scheduler, which may still reject it."""
        held = self._take(request_id)
        if held is None:
            return
        rejected = self._scheduler.add(held.request, held.arrival)
        if rejected is not None:
            self._reject(request_id, rejected)

    def submit_expired(self, now: float) -> None:
        """Passes held requests past their deadline to the scheduler, which fails them."""
        for request_id in self._held.expired(now):
            self.submit_held(request_id)

    def submit_paused(self) -> None:
        """Passes requests held by a pause to the scheduler, unless their grammar is compiling."""
        self._after_pause.clear()
        for request_id in self._held:
            if self._grammars is None or not self._grammars.is_pending(request_id):
                self.submit_held(request_id)

    def submit_live(self) -> None:
        """Passes requests held since before the pause to the scheduler, where they are aborted."""
        for request_id in self._held:
            if request_id not in self._after_pause:
                self.submit_held(request_id)

    def submit_compiled(self) -> None:
        """Passes requests with a compiled grammar to the scheduler; rejects failed ones."""
        if self._grammars is None or not self._grammars.is_compiling:
            return
        for request_id, rejected in self._grammars.take_compiled():
            if rejected is not None:
                self._take(request_id)
                self._reject(request_id, rejected)
            elif request_id not in self._after_pause:
                self.submit_held(request_id)

    def _take(self, request_id: str) -> HeldRequest | None:
        self._after_pause.discard(request_id)
        return self._held.pop(request_id)

    def _reject(self, request_id: str, rejected: Rejected) -> None:
        self.num_rejected += 1
        self._sinks.finish(request_id, TokenEvent(end=rejected))

    def _check(self, request: GenerateRequest) -> Rejected | None:
        if self._commands.is_draining:
            return Rejected(
                kind="draining",
                message="the engine is shutting down",
                retry_after_s=DRAIN_RETRY_AFTER_S,
            )
        return check_intake(request, self._info)

    def _submit_or_hold(self, request: GenerateRequest, now: float) -> Rejected | None:
        # The scheduler cannot find this duplicate: it does not know held requests.
        if request.request_id in self._sinks:
            return Rejected(
                kind="duplicate",
                field="request_id",
                message=f"request {request.request_id!r} is live already",
            )
        if not self._commands.is_holding_new and request.grammar is None:
            return self._scheduler.add(request, now)
        rejected = self._held.add(request, now)
        if rejected is not None:
            return rejected
        if self._commands.is_holding_new:
            self._after_pause.add(request.request_id)
        if request.grammar is not None and self._grammars is not None:
            self._grammars.compile(request)
        return None
