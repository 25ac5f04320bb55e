"""Random programs over a `KVCache`: rows, steps in flight, and the operations on them.

A test subclasses `CacheWorld` and adds its kind of memory: how rows are admitted, scheduled and
executed. This file only moves rows between lists and calls the cache as a scheduler would.
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from openinfer_kv_cache import BlockKeys, KVCache, Reservation, SequenceCache

Operation = tuple[int, int, int]
"""Index of an operation, and two numbers below 64 that the operation interprets."""


def random_programs(
    num: int, *, num_operations: int, length: int, factors: Mapping[int, float] | None = None
) -> Iterator[list[Operation]]:
    """Draws programs that each prefer some operations. Every call draws the same programs.

    Args:
        num: Number of programs.
        num_operations: Number of operations to choose from.
        length: Number of operations in a program.
        factors: By operation, how many times as often it is drawn as an operation that is not
            listed.
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
    """Seed of its sampled ids, which also depend on its tokens."""
    sequence: SequenceCache | None = None
    version: int = 0
    """Number of resets of the cache before the row was opened."""
    position: int = 0
    """Number of positions computed."""
    end: int = 0
    """Upper bound of `position` after the steps in flight."""
    tables: list[list[int | None]] = field(default_factory=list)
    """The block table of each group. An entry is None after its block has left the window."""
    steps: list[int] = field(default_factory=list)
    unsettled: list[int] = field(default_factory=list)
    """Sampled ids that have not been reported to the cache."""
    num_drafting: int = 0
    """Number of steps in flight with drafts."""

    def content(self, position: int) -> tuple[int, int, tuple[int, ...]]:
        """Returns a value that identifies the entry of a position."""
        return (self.version, self.adapter, tuple(self.tokens[: position + 1]))

    def answer(self, position: int) -> int:
        """Returns the id sampled after a position, 0 or 1."""
        return (self.luck >> position % 6) & 1

    def settle(self) -> None:
        """Reports computed positions and sampled ids to the cache."""
        assert self.sequence is not None
        self.sequence.apply(self.position, np.array(self.unsettled, np.uint32))
        self.unsettled = []


@dataclass(eq=False)
class ProgramWork:
    """Work of one row in a step."""

    row: ProgramRow
    kind: str
    """`chunk` or `decode`."""
    num_tokens: int
    reservation: Reservation | None
    num_accepted: int
    """Number of drafts that the device will accept."""
    is_lazy: bool
    """Whether the step's tokens are reported to the cache some steps later."""


@dataclass(eq=False)
class ProgramStep:
    """Step in flight."""

    step_id: int
    works: list[ProgramWork] = field(default_factory=list)


class CacheWorld:
    """Rows and steps over one cache.

    Each operation takes two numbers, which select a row and a variant of the operation.

    Args:
        cache: The cache. Only this world may use it.
        max_steps: Upper bound of steps in flight.
    """

    def __init__(self, cache: KVCache, max_steps: int) -> None:
        self.cache = cache
        self.max_steps = max_steps
        self.rows: list[ProgramRow] = []
        self.waiting: list[ProgramRow] = []
        self.parked: list[tuple[int, list[list[int | None]]]] = []
        """Block tables of closed rows that steps in flight still read, with the id of the last such
        step.
        """
        self.steps: list[ProgramStep] = []
        self.next_step = 1
        self.version = 0
        self.is_planning = False

    def begin(self, a: int, b: int) -> None:
        """Begins a step, unless `max_steps` are in flight."""
        if len(self.steps) < self.max_steps:
            self.cache.begin_step(self.next_step)
            self.steps.append(ProgramStep(self.next_step))
            self.next_step += 1
            self.is_planning = True

    def unplanned_row(self, a: int) -> ProgramRow | None:
        """Returns row `a`, or None if no step is being planned or the newest step has the row."""
        if not self.rows or not self.is_planning:
            return None
        row = self.rows[a % len(self.rows)]
        return None if any(work.row is row for work in self.steps[-1].works) else row

    def pop_step(self) -> ProgramStep:
        """Removes and returns the oldest step, which is about to complete."""
        step = self.steps.pop(0)
        self.is_planning = self.is_planning and bool(self.steps)
        return step

    def unpark(self, step_id: int) -> None:
        """Drops the tables of closed rows whose last step has completed."""
        self.parked = [(until, tables) for until, tables in self.parked if until != step_id]

    def opened(self, row: ProgramRow, sequence: SequenceCache) -> None:
        """Adds a row. It starts where its prefix hit ends."""
        row.position = row.end = sequence.num_cached_tokens
        row.sequence = sequence
        row.version = self.version
        row.steps, row.num_drafting = [], 0
        self.rows.append(row)

    def held_tables(self) -> Iterator[list[list[int | None]]]:
        """Yields the tables of rows, and of closed rows that a step in flight still reads."""
        yield from (row.tables for row in self.rows)
        yield from (tables for _, tables in self.parked)

    def close(self, row: ProgramRow) -> None:
        """Closes a row. Its blocks are kept for its steps in flight."""
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
        """Closes a row whose sequence has finished."""
        if self.rows:
            self.close(self.rows[a % len(self.rows)])

    def preempt(self, a: int, b: int) -> None:
        """Closes a row and queues its sequence again, with all its tokens."""
        if not self.rows:
            return
        old = self.rows[a % len(self.rows)]
        self.close(old)
        old.keys.extend(np.array(old.unsettled, np.uint32))
        self.waiting.append(ProgramRow(list(old.tokens), old.keys, old.adapter, old.luck))

    def reset(self, a: int, b: int) -> None:
        """Resets the cache if `a` is a multiple of 4."""
        if a % 4 == 0:
            self.cache.reset()
            self.version += 1
