"""Counters of several processes, in memory that all of them see.

Each front process writes one page, and any of them reads all. A page outlives its process: the one
that takes its place counts on, so that no total goes back. Cells are 8 bytes, which a processor
writes at once; who reads may see an event in one of its cells and not yet in another.

The first cell of a page says how the others are laid out. Beneath a server that runs the package
can be replaced; a process that starts then, and counts otherwise, must not count at all.
"""

import mmap
import os
import tempfile
import zlib
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from typing import IO

from openinfer_frontend.errors import CounterLayoutError

PAGE_BYTES = 1 << 15
"""Of one process, a multiple of what systems map; a table that does not fit is a defect."""
_CELL_BYTES = 8
Series = tuple[str, ...]
"""Values of a family's labels, in their order."""


class CounterPages:
    """The pages of all front processes of one server, zero at first."""

    def __init__(self, count: int = 1, *, fd: int | None = None) -> None:
        """Makes memory, or maps what another process has made.

        Args:
            count: of front processes.
            fd: what `CounterPages.fd` is where it was made, inherited; it is closed here.

        Raises:
            CounterLayoutError: it was made with pages of another size.
        """
        size = count * PAGE_BYTES
        self._file: IO[bytes] | None = None
        if fd is not None:
            with open(fd, "r+b") as file:
                if os.fstat(fd).st_size != size:
                    raise CounterLayoutError
                self._memory = mmap.mmap(file.fileno(), size)
        elif count == 1:
            self._memory = mmap.mmap(-1, size)
        else:
            self._file = _nameless_file()
            self._file.truncate(size)
            self._memory = mmap.mmap(self._file.fileno(), size)
        cells = memoryview(self._memory).cast("d")
        width = PAGE_BYTES // _CELL_BYTES
        self._pages = [cells[i * width : (i + 1) * width] for i in range(count)]

    @property
    def fd(self) -> int:
        """For processes that inherit it, until `close`; only of pages made here, for several."""
        assert self._file is not None
        return self._file.fileno()

    def close(self) -> None:
        """Nobody inherits it from here on; what is mapped stays until its last user is gone."""
        if self._file is not None:
            self._file.close()

    def page(self, number: int) -> "memoryview[float]":
        """The cells of one process; nobody else may write them while it lives."""
        return self._pages[number]

    def sign(self, number: int, layout: float) -> None:
        """Says how a page is laid out, before anything is written on it.

        Raises:
            CounterLayoutError: a page, this one or another, is laid out otherwise.
        """
        if any(page[0] not in (0.0, layout) for page in self._pages):
            raise CounterLayoutError
        self._pages[number][0] = layout

    def totals(self, num_cells: int) -> list[float]:
        """The first cells, each summed over all processes."""
        pages = (page[:num_cells].tolist() for page in self._pages)
        return [sum(cells) for cells in zip(*pages, strict=True)]


def _nameless_file() -> IO[bytes]:
    """A file that ends with its last user, in memory where the system has such files."""
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("openinfer-counters"), "r+b")
    return tempfile.TemporaryFile()


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What is counted under one name: where its cells are."""

    name: str
    """Without a prefix, and without the `_total` of a counter."""
    help: str
    begin: int
    """The first cell. A histogram's series is a cell for each bound, one beyond, and the sum."""
    labels: tuple[str, ...] = ()
    series: tuple[Series, ...] = ((),)
    bounds: tuple[float, ...] = ()
    """Of a histogram's buckets, inclusive; none: it is a counter."""
    is_sparse: bool = False
    """Whether series that are zero are left out."""

    @property
    def width(self) -> int:
        """Cells of one series."""
        return len(self.bounds) + 2 if self.bounds else 1


class Counter:
    """A number that grows."""

    __slots__ = ("_at", "_cells")

    def __init__(self, cells: "memoryview[float]", at: int) -> None:
        self._cells = cells
        self._at = at

    def add(self, amount: float = 1.0) -> None:
        """Counts."""
        self._cells[self._at] += amount


class Histogram:
    """How many values fell into which bucket, and their sum."""

    __slots__ = ("_at", "_bounds", "_cells", "_sum")

    def __init__(self, cells: "memoryview[float]", at: int, bounds: tuple[float, ...]) -> None:
        self._cells = cells
        self._at = at
        self._bounds = bounds
        self._sum = at + len(bounds) + 1

    def observe(self, value: float, count: int = 1) -> None:
        """Counts a value, so many times."""
        cells = self._cells
        cells[self._at + bisect_left(self._bounds, value)] += count
        cells[self._sum] += value * count


class CounterTable:
    """Gives families their cells, in the order in which they are asked for, behind the first cell.

    Every process asks for the same ones in the same order: that is what makes pages alike, and
    `layout` shows it.

    Attributes:
        families: all of them so far.
        num_cells: that they have together.
    """

    def __init__(self, page: "memoryview[float]") -> None:
        self.families: list[Family] = []
        self.num_cells = 1
        self._cells = page

    @property
    def layout(self) -> float:
        """A number for the cells' places and meanings, never 0; a page has it in its first cell."""
        places = [(f.name, f.begin, f.labels, f.series, f.bounds) for f in self.families]
        return 1.0 + zlib.crc32(repr((PAGE_BYTES, places)).encode())

    def counters(
        self,
        name: str,
        text: str,
        labels: tuple[str, ...] = (),
        series: Iterable[Series] = ((),),
        *,
        is_sparse: bool = False,
    ) -> dict[Series, Counter]:
        """A number for each series; arguments as in `Family`."""
        places = self._place(name, text, labels, series, (), is_sparse)
        return {key: Counter(self._cells, at) for key, at in places.items()}

    def counter(self, name: str, text: str) -> Counter:
        """A number, without labels."""
        return self.counters(name, text)[()]

    def histograms(
        self,
        name: str,
        text: str,
        bounds: tuple[float, ...],
        labels: tuple[str, ...] = (),
        series: Iterable[Series] = ((),),
        *,
        is_sparse: bool = False,
    ) -> dict[Series, Histogram]:
        """Buckets for each series; arguments as in `Family`."""
        places = self._place(name, text, labels, series, bounds, is_sparse)
        return {key: Histogram(self._cells, at, bounds) for key, at in places.items()}

    def histogram(self, name: str, text: str, bounds: tuple[float, ...]) -> Histogram:
        """Buckets, without labels."""
        return self.histograms(name, text, bounds)[()]

    def _place(
        self,
        name: str,
        text: str,
        labels: tuple[str, ...],
        series: Iterable[Series],
        bounds: tuple[float, ...],
        is_sparse: bool,
    ) -> dict[Series, int]:
        """The first cell of each series."""
        family = Family(
            name=name,
            help=text,
            begin=self.num_cells,
            labels=labels,
            series=tuple(series),
            bounds=bounds,
            is_sparse=is_sparse,
        )
        self.families.append(family)
        self.num_cells += len(family.series) * family.width
        assert self.num_cells <= len(self._cells), "a page is too small for what is counted"
        return {key: family.begin + i * family.width for i, key in enumerate(family.series)}
