"""Prefixes that the sequences of a decode step share, cut into units of work on the host.

The table is computed once when the set of sequences changes, and read by every layer of every step
after that. Computing it in the kernels instead would cost each of them a chain of loads.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

UNIT_MEMBERS = 32
"""Upper bound of the sequences in a unit of work."""
UNIT_KEYS = 128
"""The keys of a unit are a multiple of this, except in the last unit of a group."""
MAX_PREFIX_GROUPS = 8
"""Upper bound of the groups in a step."""
# Programs over shared keys: about one for each of the 132 multiprocessors of an H200.
_TARGET_PROGRAMS = 128
# Leading fields of a unit, and fields of a sequence; see `SharedPrefixes`.
_UNIT_FIELDS = 4
_ROW_FIELDS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixGroup:
    """Sequences whose block tables begin with the same blocks.

    Attributes:
        members: [n], indices of sequences in the step. A sequence is in at most one group.
        num_tokens: Tokens in the shared blocks: a multiple of block_size, and fewer than any member
            has, including this step's token.
    """

    members: npt.NDArray[np.int64]
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefixes:
    """The shared prefixes of a decode step, on its device.

    A back end may attend to a group's blocks once for all members. It may also ignore this, because
    the block table alone is sufficient. In captured steps, values may change but shapes may not.
    `PrefixTable` makes the tensors.

    Attributes:
        units: [max_units, 4 + UNIT_MEMBERS], int32: number of sequences, first key, end of its
            keys, 0; then the sequences. The block table of the first one is used for the keys.
            Unused units have no sequences.
        rows: [num_seqs, 4], int32: the sequence's leading tokens that its units attend to; its
            place in its first unit, as unit * UNIT_MEMBERS + member; the distance in units to its
            next unit; its number of units. All 0 if the sequence shares nothing.
    """

    units: torch.Tensor
    rows: torch.Tensor


class PrefixTable:
    """Packs groups into `SharedPrefixes` of one shape.

    Args:
        num_seqs: Sequences of a step.
        num_kv_heads: Key heads of the attention.
    """

    def __init__(self, num_seqs: int, num_kv_heads: int) -> None:
        self._num_seqs = num_seqs
        # Room for a unit for each tile of members; the last tile of each group may be short.
        num_tiles = num_seqs // UNIT_MEMBERS + MAX_PREFIX_GROUPS
        self._max_units = max(_TARGET_PROGRAMS // num_kv_heads, num_tiles)
        self._unit_size = self._max_units * (_UNIT_FIELDS + UNIT_MEMBERS)

    @property
    def size(self) -> int:
        """Returns the number of int32 values in a packed table."""
        return self._unit_size + self._num_seqs * _ROW_FIELDS

    def packed(self, groups: Sequence[PrefixGroup]) -> npt.NDArray[np.int32]:
        """Returns [size]: the `SharedPrefixes` of at most MAX_PREFIX_GROUPS groups."""
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
                # Units with the same keys are neighbours, so that the keys stay in the L2 cache.
                mine = units[at + tile : at + tiles * chunks : tiles]
                mine[:, 0], mine[:, 1], mine[:, 2] = len(members), ends[:-1], ends[1:]
                mine[:, _UNIT_FIELDS : _UNIT_FIELDS + len(members)] = members
                rows[members, 0] = group.num_tokens
                rows[members, 1] = (at + tile) * UNIT_MEMBERS + np.arange(len(members))
                rows[members, 2:] = tiles, chunks
            at += tiles * chunks
        return packed

    def _chunk(self, groups: Sequence[PrefixGroup]) -> int:
        """Returns the smallest chunk, in UNIT_KEYS, at which all units have room in the table."""
        sizes = [(_num_tiles(group), _num_key_tiles(group)) for group in groups]
        chunk = max(1, -(-sum(tiles * keys for tiles, keys in sizes) // self._max_units))
        while sum(tiles * -(-keys // chunk) for tiles, keys in sizes) > self._max_units:
            chunk += 1
        return chunk

    def view(self, packed: torch.Tensor) -> SharedPrefixes:
        """Returns views of a packed table [size], int32."""
        units, rows = packed.split_with_sizes([self._unit_size, self._num_seqs * _ROW_FIELDS])
        return SharedPrefixes(
            units=units.view(self._max_units, -1), rows=rows.view(self._num_seqs, -1)
        )


def _num_tiles(group: PrefixGroup) -> int:
    return -(-len(group.members) // UNIT_MEMBERS)


def _num_key_tiles(group: PrefixGroup) -> int:
    return -(-group.num_tokens // UNIT_KEYS)
