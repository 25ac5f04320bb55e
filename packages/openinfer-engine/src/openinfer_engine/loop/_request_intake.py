"""From a request's arrival to the scheduler, which some may reach only later."""

from openinfer_contract import EngineInfo, GenerateRequest, Rejected, TokenEvent
from openinfer_engine.loop._command_queue import CommandQueue
from openinfer_engine.loop._event_sinks import EventSinks
from openinfer_engine.loop._grammar_queue import GrammarQueue
from openinfer_engine.loop._held_requests import HeldRequest, HeldRequests
from openinfer_engine.loop._request_checks import check_intake
from openinfer_scheduler import Scheduler

DRAIN_RETRY_AFTER_S = 5.0


class RequestIntake:
    """Takes requests in; those that wait for a grammar or a pause are held. For the step thread.

    Args:
        scheduler: that they go to.
        info: what they are checked against.
        sinks: tells those that are refused once they were taken in.
        grammars: compile what a request may ask for; None where none may.
        commands: know of pauses, and of the end.

    Attributes:
        num_rejected: requests that were not let in, ever.
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
        """Of the held ones those that came after a pause; it comes after all others."""
        self.num_rejected = 0

    def __len__(self) -> int:
        """Requests that are held."""
        return len(self._held)

    @property
    def has_live(self) -> bool:
        """Whether a request is held that a pause waits for."""
        return len(self._held) > len(self._after_pause)

    @property
    def num_tokens(self) -> int:
        """Of the prompts of requests that are held."""
        return self._held.num_tokens

    def take(self, request: GenerateRequest, now: float) -> Rejected | None:
        """Why a request is not let in; None: it is, and its sink is to be opened."""
        rejected = self._check(request) or self._admit(request, now)
        self.num_rejected += rejected is not None
        return rejected

    def submit_held(self, request_id: str) -> None:
        """Hands a held request to the scheduler, which may refuse it after all."""
        held = self._take(request_id)
        if held is None:
            return
        rejected = self._scheduler.add(held.request, held.arrival)
        if rejected is not None:
            self._reject(request_id, rejected)

    def submit_expired(self, now: float) -> None:
        """Hands over what is past its deadline: the scheduler says it."""
        for request_id in self._held.expired(now):
            self.submit_held(request_id)

    def submit_paused(self) -> None:
        """Hands over what a pause has held back; grammars are waited for all the same."""
        self._after_pause.clear()
        for request_id in self._held:
            if self._grammars is None or not self._grammars.is_pending(request_id):
                self.submit_held(request_id)

    def submit_live(self) -> None:
        """Hands over what came before a pause that is to end it, its grammar ready or not."""
        for request_id in self._held:
            if request_id not in self._after_pause:
                self.submit_held(request_id)

    def submit_compiled(self) -> None:
        """Hands over requests whose grammar is ready, and refuses those whose never will be."""
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

    def _admit(self, request: GenerateRequest, now: float) -> Rejected | None:
        # Before anything else: the scheduler does not know of those that are held.
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
