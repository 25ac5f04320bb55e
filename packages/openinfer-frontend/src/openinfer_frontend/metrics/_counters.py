"""Counters of several front processes, in shared memory.

Each front process writes one page, and every front process reads all pages. A page outlives its
process: the process that replaces it continues the counts, so that no total decreases. Cells are 8
bytes, which a processor writes at once. A reader may see an event in one of its cells and not yet
in another.

The first cell of a page is a checksum of the layout. If the package is upgraded while the server
runs, a process that starts afterwards may have another layout; it then raises an error instead of
counting.
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
"""Size of one process's page, a multiple of the system's page size. All families must fit."""
_CELL_BYTES = 8
Series = tuple[str, ...]
"""Label values, in the order of the family's labels."""


class CounterPages:
    """The pages of all front processes of one server; initially zero."""

    def __init__(self, count: int = 1, *, fd: int | None = None) -> None:
        """Allocates the pages, or maps those of another process.

        Args:
            count: number of front processes.
            fd: the inherited `CounterPages.fd` of the process that allocated the pages; closed
                here.

        Raises:
            CounterLayoutError: the pages have another size.
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
        """The descriptor of pages allocated here for several processes; valid until `close`."""
        assert self._file is not None
        return self._file.fileno()

    def close(self) -> None:
        """Closes the descriptor; mapped pages stay until their last user exits."""
        if self._file is not None:
            self._file.close()

    def page(self, number: int) -> "memoryview[float]":
        """Returns the cells of one process, which alone may write them."""
        return self._pages[number]

    def write_layout(self, number: int, layout: float) -> None:
        """Writes the checksum of the layout into a page, before anything else is written.

        Raises:
            CounterLayoutError: this page or another one has another layout.
        """
        if any(page[0] not in (0.0, layout) for page in self._pages):
            raise CounterLayoutError
        self._pages[number][0] = layout

    def totals(self, num_cells: int) -> list[float]:
        """Returns the first cells, each summed over all processes."""
        pages = (page[:num_cells].tolist() for page in self._pages)
        return [sum(cells) for cells in zip(*pages, strict=True)]


def _nameless_file() -> IO[bytes]:
    """Opens a file without a name, in memory if the system supports that."""
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("openinfer-counters"), "r+b")
    return tempfile.TemporaryFile()


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The metrics under one name, and the place of their cells."""

    name: str
    """The name without the prefix, and without the `_total` of a counter."""
    help: str
    begin: int
    """The first cell. A histogram's series has one cell for each bound, one beyond the last, and
    the sum."""
    labels: tuple[str, ...] = ()
    series: tuple[Series, ...] = ((),)
    bounds: tuple[float, ...] = ()
    """Inclusive upper bounds of a histogram's buckets; empty for a counter."""
    is_sparse: bool = False
    """Whether series of zeros are left out of the page."""

    @property
    def width(self) -> int:
        """Cells of one series."""
        return len(self.bounds) + 2 if self.bounds else 1


class Counter:
    """A count that only grows."""

    __slots__ = ("_at", "_cells")

    def __init__(self, cells: "memoryview[float]", at: int) -> None:
        self._cells = cells
        self._at = at

    def add(self, amount: float = 1.0) -> None:
        """Adds to the number."""
        self._cells[self._at] += amount


class Histogram:
    """Counts of values by bucket, and their sum."""

    __slots__ = ("_at", "_bounds", "_cells", "_sum")

    def __init__(self, cells: "memoryview[float]", at: int, bounds: tuple[float, ...]) -> None:
        self._cells = cells
        self._at = at
        self._bounds = bounds
        self._sum = at + len(bounds) + 1

    def observe(self, value: float, count: int = 1) -> None:
        """Counts a value `count` times."""
        cells = self._cells
        cells[self._at + bisect_left(self._bounds, value)] += count
        cells[self._sum] += value * count


class CounterTable:
    """Allocates the cells of families in one page.

    Every process registers the same families in the same order, so that all pages have the same
    layout. `layout` is its checksum.

    Attributes:
        families: all of them so far.
        num_cells: the number of allocated cells.
    """

    def __init__(self, page: "memoryview[float]") -> None:
        self.families: list[Family] = []
        self.num_cells = 1
        self._cells = page

    @property
    def layout(self) -> float:
        """The checksum of places and meanings of all cells, never 0; the first cell of a page."""
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
        """Allocates a counter for each series; arguments as in `Family`."""
        places = self._allocate(name, text, labels, series, (), is_sparse)
        return {key: Counter(self._cells, at) for key, at in places.items()}

    def counter(self, name: str, text: str) -> Counter:
        """Allocates a counter without labels."""
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
        """Allocates a histogram for each series; arguments as in `Family`."""
        places = self._allocate(name, text, labels, series, bounds, is_sparse)
        return {key: Histogram(self._cells, at, bounds) for key, at in places.items()}

    def histogram(self, name: str, text: str, bounds: tuple[float, ...]) -> Histogram:
        """Allocates a histogram without labels."""
        return self.histograms(name, text, bounds)[()]

    def _allocate(
        self,
        name: str,
        text: str,
        labels: tuple[str, ...],
        series: Iterable[Series],
        bounds: tuple[float, ...],
        is_sparse: bool,
    ) -> dict[Series, int]:
        """Allocates the cells of a family, and returns the first cell of each series."""
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
