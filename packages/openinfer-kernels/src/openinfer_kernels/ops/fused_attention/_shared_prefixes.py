"""Shared prefixes of a decode step: who shares what, cut into units of work on the host.

Kernels read the tables in every layer of every step until a sequence comes or goes; what is worked
out here once they need not find out each time, which would cost them a chain of loads.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

UNIT_MEMBERS = 32
"""Sequences of a unit at most."""
UNIT_KEYS = 128
"""Keys of a unit: a multiple of it, but of a group's last."""
MAX_PREFIX_GROUPS = 8
"""Groups of a step at most."""
# Programs over shared keys: about one for each multiprocessor of a large GPU.
_TARGET_PROGRAMS = 128
# Of a unit: its sequences, where its keys begin and end; of a sequence: see `SharedPrefixes`.
_UNIT_FIELDS = 4
_ROW_FIELDS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixGroup:
    """Sequences whose block tables begin alike.

    Attributes:
        members: [n], of the step's sequences; each in one group at most.
        num_tokens: Of the blocks that they share: a multiple of block_size, and fewer than any
            member has, this step's token included.
    """

    members: npt.NDArray[np.int64]
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefixes:
    """What a decode step knows of shared prefixes, on its device.

    It tells a backend nothing that the block table does not: one may attend to a group's blocks
    once for all members, or ignore it. Values may change between steps, shapes may not where steps
    are recorded. `PrefixTable` makes it.

    Attributes:
        units: [max_units, 4 + UNIT_MEMBERS], int32: number of sequences, first key, key behind the
            last, 0; then the sequences, of which the first's block table holds the keys. Units that
            are not needed have no sequences.
        rows: [num_seqs, 4], int32: tokens at the sequence's beginning that are its units'; place
            of the sequence in its first unit, as unit * UNIT_MEMBERS + member; units to the next
            one of its own; how many there are. All 0 where a sequence shares nothing.
    """

    units: torch.Tensor
    rows: torch.Tensor


class PrefixTable:
    """Makes `SharedPrefixes` of one shape, from groups.

    Args:
        num_seqs: Sequences of a step.
        num_kv_heads: Key heads of its attention.
    """

    def __init__(self, num_seqs: int, num_kv_heads: int) -> None:
        self._num_seqs = num_seqs
        # At least one for each tile of members, of which each group's last may be short.
        num_tiles = num_seqs // UNIT_MEMBERS + MAX_PREFIX_GROUPS
        self._max_units = max(_TARGET_PROGRAMS // num_kv_heads, num_tiles)
        self._unit_size = self._max_units * (_UNIT_FIELDS + UNIT_MEMBERS)

    @property
    def size(self) -> int:
        """Numbers in a table."""
        return self._unit_size + self._num_seqs * _ROW_FIELDS

    def packed(self, groups: Sequence[PrefixGroup]) -> npt.NDArray[np.int32]:
        """[size]: at most MAX_PREFIX_GROUPS groups, as `SharedPrefixes` has them."""
        assert len(groups) <= MAX_PREFIX_GROUPS, "too many groups for the table"
        packed = np.zeros(self.size, np.int32)
        units = packed[: self._unit_size].reshape(self._max_units, -1)
        rows = packed[self._unit_size :].reshape(self._num_seqs, -1)
        chunk, at = self._chunk(groups), 0
        for group in groups:
            tiles, key_tiles = _num_tiles(group), _num_key_tiles(group)
            chunks = -(-key_tiles // chunk)
            ends = np.arange(chunks + 1) * key_tiles // chunks * UNIT_KEYS
            ends[-1] = group.num_tokens
            for tile in range(tiles):
                members = group.members[tile * UNIT_MEMBERS : (tile + 1) * UNIT_MEMBERS]
                # Tiles of one chunk are neighbours, so that its keys are read once.
                mine = units[at + tile : at + tiles * chunks : tiles]
                mine[:, 0], mine[:, 1], mine[:, 2] = len(members), ends[:-1], ends[1:]
                mine[:, _UNIT_FIELDS : _UNIT_FIELDS + len(members)] = members
                rows[members, 0] = group.num_tokens
                rows[members, 1] = (at + tile) * UNIT_MEMBERS + np.arange(len(members))
                rows[members, 2:] = tiles, chunks
            at += tiles * chunks
        return packed

    def _chunk(self, groups: Sequence[PrefixGroup]) -> int:
        """UNIT_KEYS of a unit at most, so that there is room for all."""
        sizes = [(_num_tiles(group), _num_key_tiles(group)) for group in groups]
        chunk = max(1, -(-sum(tiles * keys for tiles, keys in sizes) // self._max_units))
        while sum(tiles * -(-keys // chunk) for tiles, keys in sizes) > self._max_units:
            chunk += 1
        return chunk

    def view(self, packed: torch.Tensor) -> SharedPrefixes:
        """A table that lies in `packed` [size], int32."""
        units, rows = packed.split_with_sizes([self._unit_size, self._num_seqs * _ROW_FIELDS])
        return SharedPrefixes(
            units=units.view(self._max_units, -1), rows=rows.view(self._num_seqs, -1)
        )


def _num_tiles(group: PrefixGroup) -> int:
    return -(-len(group.members) // UNIT_MEMBERS)


def _num_key_tiles(group: PrefixGroup) -> int:
    return -(-group.num_tokens // UNIT_KEYS)
