"""Requests with a grammar: compiled before they are scheduled, masked and advanced in every step.

Compiling runs on the compiler's threads. The step thread calls everything here, and each call
returns at once; several threads share the filling of expensive masks. Rows of a plan name slots, so
the queue remembers which request has which slot.
"""

from collections.abc import Iterator
from concurrent.futures import Future

import numpy as np

from openinfer_contract import GenerateRequest, Rejected, pack_ids, unpack_ids
from openinfer_engine._executor import GrammarMasks
from openinfer_engine._machine import physical_cores
from openinfer_engine.loop._constrained_request import ConstrainedRequest
from openinfer_grammar import (
    BackendUnavailable,
    Constraint,
    GrammarCompiler,
    GrammarFailed,
    GrammarRefused,
    MaskFiller,
    MaskRow,
    num_mask_words,
)
from openinfer_scheduler import Effects, StepPlan


class GrammarQueue:
    """The grammars that are compiling, and the constraints of the engine's live requests.

    Args:
        compiler: compiles grammars; closed by `close`.
        vocab_size: number of ids of the model.
        num_slots: upper bound of rows in a step.
    """

    def __init__(self, compiler: GrammarCompiler, *, vocab_size: int, num_slots: int) -> None:
        self._compiler = compiler
        self._filler = MaskFiller(physical_cores())
        self._words = np.zeros((num_slots, num_mask_words(vocab_size)), np.uint32)
        self._compiling: dict[str, tuple[GenerateRequest, Future[Constraint]]] = {}
        self._live: dict[str, ConstrainedRequest] = {}
        self._request_ids: dict[int, str] = {}
        """Request ids by slot, for rows with a grammar."""

    @property
    def is_compiling(self) -> bool:
        """Whether a request waits for its grammar."""
        return bool(self._compiling)

    @property
    def has_constraints(self) -> bool:
        """Whether a request with a grammar is live."""
        return bool(self._live)

    def compile(self, request: GenerateRequest) -> None:
        """Starts to compile a request's grammar and to advance it over the output prefix."""
        assert request.grammar is not None
        num_before = request.num_prompt_tokens - request.num_output_prefix
        output = unpack_ids(request.prompt_token_ids[4 * num_before :])
        future = self._compiler.compile(request.grammar, output)
        self._compiling[request.request_id] = request, future

    def is_pending(self, request_id: str) -> bool:
        """Whether the request's grammar is still compiling."""
        return request_id in self._compiling

    def take_compiled(self) -> list[tuple[str, Rejected | None]]:
        """Returns the requests whose compilation has ended, each with the reason if it failed."""
        done = [i for i, (_, future) in self._compiling.items() if future.done()]
        return [(request_id, self._take(request_id)) for request_id in done]

    def _take(self, request_id: str) -> Rejected | None:
        request, future = self._compiling.pop(request_id)
        try:
            constraint = future.result()
        except GrammarRefused as error:
            return Rejected(kind="invalid", field="grammar", message=f"grammar: {error}")
        except BackendUnavailable as error:
            return Rejected(kind="unsupported", field="grammar", message=f"grammar: {error}")
        self._live[request_id] = ConstrainedRequest(request, constraint)
        return None

    def drop(self, request_id: str) -> None:
        """Drops a request: cancels its compilation, or releases its constraint."""
        self._live.pop(request_id, None)
        compiling = self._compiling.pop(request_id, None)
        if compiling is not None:
            compiling[1].cancel()

    def track_slots(self, plan: StepPlan) -> bool:
        """Records which request each slot belongs to; returns whether sampling needs masks."""
        for start in plan.starts:
            if start.request.grammar is not None:
                self._request_ids[start.slot] = start.request.request_id
            else:
                self._request_ids.pop(start.slot, None)
        return any(row.needs_mask for row in plan.rows)

    def fill_masks(self, plan: StepPlan) -> tuple[GrammarMasks, dict[str, str]]:
        """Fills the masks of a plan, once all earlier steps are settled.

        Returns:
            The masks by row, valid until the next call; and by request id, why a grammar cannot
            continue.
        """
        rows: dict[int, ConstrainedRequest] = {}
        for index, row in enumerate(plan.rows):
            if not row.needs_mask:
                continue
            live = self._live.get(self._request_ids[row.slot])
            # A request that is not live has ended, and its sample will be ignored.
            if live is not None and live.constraint.is_masking:
                rows[index] = live
        failed = self._filler.fill([(rows[i].constraint, self._words[i]) for i in rows])
        failures = {index: failed[at] for at, index in enumerate(rows) if at in failed}
        masks: dict[int, MaskRow] = {}
        for index, live in rows.items():
            try:
                if index not in failures:
                    live.charge_mask()
                    masks[index] = self._words[index]
            except GrammarFailed as error:
                failures[index] = error
        return masks, {rows[i].request.request_id: str(why) for i, why in failures.items()}

    def advance(self, effects: Effects) -> dict[str, str]:
        """Advances constraints by sampled tokens.

        Returns:
            By request id, why a grammar cannot continue.
        """
        failures: dict[str, str] = {}
        for request_id, event in effects:
            live = self._live.get(request_id)
            if live is None or event.end is not None or not event.token_ids:
                continue
            try:
                live.accept(unpack_ids(event.token_ids))
            except GrammarFailed as error:
                failures[request_id] = str(error)
        return failures

    def forced_tokens(self, effects: Effects) -> Iterator[tuple[str, bytes]]:
        """Yields (request id, u32 column) where a grammar allows only one continuation."""
        for request_id, _ in effects:
            live = self._live.get(request_id)
            if live is not None and live.is_forcible and live.constraint.forced:
                yield request_id, pack_ids(live.constraint.forced)

    def close(self) -> None:
        """Ends all threads. Idempotent."""
        self._compiler.close()
        self._filler.close()
