"""What random programs over a cache have in common: rows, steps in flight, and how they end.

A world subclasses `CacheWorld` with what its memory is like: how rows are admitted, scheduled and
executed. Everything here only moves rows about, and calls the cache as a scheduler would.
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from openinfer_kv_cache import BlockKeys, KVCache, Reservation, SequenceCache

Operation = tuple[int, int, int]
"""Which one, and two numbers below 64 that it makes of what it likes."""


def random_programs(
    num: int, *, num_operations: int, length: int, factors: Mapping[int, float] | None = None
) -> Iterator[list[Operation]]:
    """Draws programs, each with a liking of its own for some operations; the same ones every time.

    Args:
        num: programs.
        num_operations: to choose from.
        length: operations of a program.
        factors: by operation, how much more often than others it is to come.
    """
    for seed in range(num):
        rng = random.Random(seed)
        weights = [rng.random() for _ in range(num_operations)]
        for operation, factor in (factors or {}).items():
            weights[operation] *= factor
        yield [
            (
                rng.choices(range(num_operations), weights)[0],
                rng.randrange(64),
                rng.randrange(64),
            )
            for _ in range(length)
        ]


@dataclass(eq=False)
class ProgramRow:
    """One sequence, as the device knows it."""

    tokens: list[int]
    keys: BlockKeys
    adapter: int = 0
    luck: int = 0
    """Beside its tokens, what its answer depends on."""
    sequence: SequenceCache | None = None
    version: int = 0
    """Resets of the cache before it was opened."""
    position: int = 0
    """Positions computed."""
    end: int = 0
    """Upper bound of the positions over steps in flight."""
    tables: list[list[int | None]] = field(default_factory=list)
    """Per group, the block table; None where a window has left a block behind."""
    steps: list[int] = field(default_factory=list)
    unsettled: list[int] = field(default_factory=list)
    """Sampled ids that the cache was not told of."""
    num_drafting: int = 0
    """Steps in flight with drafts."""

    def content(self, position: int) -> tuple[int, int, tuple[int, ...]]:
        """What the entry of a position stands for."""
        return (self.version, self.adapter, tuple(self.tokens[: position + 1]))

    def answer(self, position: int) -> int:
        """The id sampled behind a position, 0 or 1."""
        return (self.luck >> position % 6) & 1

    def settle(self) -> None:
        """Tells the cache what was computed and sampled."""
        assert self.sequence is not None
        self.sequence.apply(self.position, np.array(self.unsettled, np.uint32))
        self.unsettled = []


@dataclass(eq=False)
class ProgramWork:
    """A row's share of a step."""

    row: ProgramRow
    kind: str
    """chunk or decode."""
    num_tokens: int
    reservation: Reservation | None
    num_accepted: int
    """Drafts that the device will accept."""
    is_lazy: bool
    """Whether the cache is told of the step's tokens some time later."""


@dataclass(eq=False)
class ProgramStep:
    """A step in flight."""

    step_id: int
    works: list[ProgramWork] = field(default_factory=list)


class CacheWorld:
    """Rows and steps over one cache; operations take two numbers that say which and how.

    Args:
        cache: driven by this world alone.
        max_steps: steps in flight at most.
    """

    def __init__(self, cache: KVCache, max_steps: int) -> None:
        self.cache = cache
        self.max_steps = max_steps
        self.rows: list[ProgramRow] = []
        self.waiting: list[ProgramRow] = []
        self.parked: list[tuple[int, list[list[int | None]]]] = []
        """Tables of closed rows by the step that they wait for."""
        self.steps: list[ProgramStep] = []
        self.next_step = 1
        self.version = 0
        self.is_planning = False

    def begin(self, a: int, b: int) -> None:
        """Begins a step, unless enough are in flight."""
        if len(self.steps) < self.max_steps:
            self.cache.begin_step(self.next_step)
            self.steps.append(ProgramStep(self.next_step))
            self.next_step += 1
            self.is_planning = True

    def unplanned_row(self, a: int) -> ProgramRow | None:
        """The row that `a` says, if the step that begins last may have it and has not."""
        if not self.rows or not self.is_planning:
            return None
        row = self.rows[a % len(self.rows)]
        return None if any(work.row is row for work in self.steps[-1].works) else row

    def pop_step(self) -> ProgramStep:
        """The oldest step, which is about to complete."""
        step = self.steps.pop(0)
        self.is_planning = self.is_planning and bool(self.steps)
        return step

    def unpark(self, step_id: int) -> None:
        """A step has completed: what waited for it is free."""
        self.parked = [(until, tables) for until, tables in self.parked if until != step_id]

    def opened(self, row: ProgramRow, sequence: SequenceCache) -> None:
        """A row starts where its prefix hit ends."""
        row.position = row.end = sequence.num_cached_tokens
        row.sequence = sequence
        row.version = self.version
        row.steps, row.num_drafting = [], 0
        self.rows.append(row)

    def held_tables(self) -> Iterator[list[list[int | None]]]:
        """Tables of rows, and of closed ones that a step still holds."""
        yield from (row.tables for row in self.rows)
        yield from (tables for _, tables in self.parked)

    def close(self, row: ProgramRow) -> None:
        """Ends a row, whose blocks stay for its steps in flight."""
        assert row.sequence is not None
        until = row.steps[-1] if row.steps else None
        if until is None and row.unsettled:
            row.settle()
        row.sequence.close(in_flight_until=until)
        row.sequence = None
        self.rows.remove(row)
        if until is not None:
            self.parked.append((until, row.tables))

    def finish(self, a: int, b: int) -> None:
        """Ends some row."""
        if self.rows:
            self.close(self.rows[a % len(self.rows)])

    def preempt(self, a: int, b: int) -> None:
        """Ends some row, which waits again with all it knows."""
        if not self.rows:
            return
        old = self.rows[a % len(self.rows)]
        self.close(old)
        old.keys.extend(np.array(old.unsettled, np.uint32))
        self.waiting.append(ProgramRow(list(old.tokens), old.keys, old.adapter, old.luck))

    def reset(self, a: int, b: int) -> None:
        """Forgets the cache, now and then."""
        if a % 4 == 0:
            self.cache.reset()
            self.version += 1
