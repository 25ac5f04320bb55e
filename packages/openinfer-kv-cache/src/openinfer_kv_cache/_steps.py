"""Steps in flight, as the cache tracks them.

              begin                    complete (oldest first)
    (none) ──────────> in flight ──────────────────────────────> landed
                          │
                          └── cancel (newest, without reservations)

Beginning a step publishes the blocks that the step before it sealed, so blocks are shared with
later steps only. Completing a step releases the sequences that were closed while it was in flight.
"""

from dataclasses import dataclass, field
from typing import final

from openinfer_kv_cache._keys import BlockKeys
from openinfer_kv_cache.arena._space import Blocks
from openinfer_kv_cache.errors import StepOrderError
from openinfer_kv_cache.eviction._lru import BlockIds
from openinfer_kv_cache.groups._recurrent_state import NO_COPIES, StepCopies
from openinfer_kv_cache.pool._block_list import Seals


@final
class Reservation:
    """Blocks and seals that one step took for one sequence.

    Attributes:
        new_block_ids: for each group, the blocks to append to the row's block table. In a state
            group, the sequence's block, once.
        copies: copies of states in state groups.
        end: positions below it have room.
        step_id: the step that uses the reservation.
        is_in_flight: whether the step has not completed yet.
    """

    __slots__ = (
        "_blocks",
        "_keys",
        "_seals",
        "copies",
        "end",
        "is_in_flight",
        "new_block_ids",
        "step_id",
    )

    def __init__(
        self,
        blocks: Blocks,
        keys: BlockKeys,
        new_block_ids: tuple[BlockIds, ...],
        *,
        step_id: int,
        end: int,
        seals: Seals | None,
        copies: StepCopies = NO_COPIES,
    ) -> None:
        self._blocks = blocks
        self._keys = keys
        self._seals = seals
        self.new_block_ids = new_block_ids
        self.copies = copies
        self.end = end
        self.step_id = step_id
        self.is_in_flight = True

    def _publish(self) -> None:
        if self.is_in_flight:
            self._blocks.publish()

    def _land(self) -> None:
        if self.is_in_flight:
            self.is_in_flight = False
            assert self._seals is not None, "a reservation without seals cannot land"
            self._blocks.land_step(self.step_id, self._keys, self._seals)


@dataclass(slots=True)
class _Step:
    step_id: int
    reservations: list[Reservation] = field(default_factory=list)
    parked: list[Blocks] = field(default_factory=list)


class StepLedger:
    """The steps that have begun and have not completed yet."""

    def __init__(self) -> None:
        self._steps: list[_Step] = []
        self._is_planning = False
        self._last_landed: int | None = None

    @property
    def num_in_flight(self) -> int:
        """Number of steps that have begun and not ended."""
        return len(self._steps)

    @property
    def num_parked(self) -> int:
        """Number of closed sequences that wait for a step."""
        return sum(len(step.parked) for step in self._steps)

    @property
    def planned(self) -> int:
        """Id of the step being planned.

        Raises:
            StepOrderError: no step has begun since the last one was completed or cancelled.
        """
        if not self._is_planning:
            raise StepOrderError("no step is being planned")
        return self._steps[-1].step_id

    def begin(self, step_id: int) -> None:
        """Starts planning `step_id`, which must be greater than every earlier id."""
        newest = self._steps[-1].step_id if self._steps else self._last_landed
        if newest is not None and step_id <= newest:
            raise StepOrderError(f"step {step_id} begun after step {newest}")
        if self._steps:
            _publish(self._steps[-1])
        self._steps.append(_Step(step_id))
        self._is_planning = True

    def record(self, reservation: Reservation) -> None:
        """Adds a reservation of the step being planned."""
        self._steps[-1].reservations.append(reservation)

    def park(self, blocks: Blocks, step_id: int) -> None:
        """Keeps a closed sequence's blocks until `step_id` has completed."""
        for step in reversed(self._steps):
            if step.step_id <= step_id:
                step.parked.append(blocks)
                return
        blocks.release()

    def complete(self, step_id: int) -> None:
        """Records that the oldest step has run."""
        if not self._steps or self._steps[0].step_id != step_id:
            raise StepOrderError(f"step {step_id} completed, but is not the oldest in flight")
        step = self._steps[0]
        if len(self._steps) == 1:
            _publish(step)
            self._is_planning = False
        del self._steps[0]
        self._last_landed = step_id
        for reservation in step.reservations:
            if reservation._seals is None:
                reservation.is_in_flight = False
            else:
                reservation._land()
        for blocks in step.parked:
            blocks.release()

    def cancel(self, step_id: int) -> None:
        """Ends the planning of the newest step, which has no reservations."""
        if not self._steps or self._steps[-1].step_id != step_id:
            raise StepOrderError(f"step {step_id} cancelled, but is not the newest in flight")
        if self._steps[-1].reservations:
            raise StepOrderError(f"step {step_id} cancelled, but has reservations")
        step = self._steps.pop()
        self._is_planning = False
        for blocks in step.parked:
            self.park(blocks, step_id)


def _publish(step: _Step) -> None:
    for reservation in step.reservations:
        if reservation._seals is not None:
            reservation._publish()
