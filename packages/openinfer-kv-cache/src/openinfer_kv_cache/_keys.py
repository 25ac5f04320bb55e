"""Block keys: two blocks with equal keys hold the same content.

A key is the 128-bit xxh3 digest of the parent's key followed by the block's token ids as
little-endian u32, so it identifies every token up to the end of the block. The parent of a first
block is empty for the base model. With an adapter or a salt it is a digest of both, prefixed by the
length of the adapter's uid, so that no two pairs collide. xxh3 is not cryptographic: tenants that
must not guess one another's prefixes need salts.
"""

import sys
from typing import Any

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_128_digest

TokenIds = npt.NDArray[np.uint32]
"""[num_tokens] token ids."""

HASH_RECIPE = "xxh3-128-chain/v1"
"""Name of the recipe above; part of every tier's namespace."""

_BYTES_PER_ID = 4
_IS_LITTLE = sys.byteorder == "little"
_U32 = np.dtype(np.uint32)


class BlockKeys:
    """The chain of keys of one request, extended as its tokens become known.

    It belongs to the request and outlives a `SequenceCache`: a preempted request is matched again
    with the same keys. Keys are computed when first needed; hashing 100k tokens takes about 1 ms.

    Args:
        tokens_per_block: number of tokens that one key covers beyond its parent.
        adapter_uid: digest of the adapter's bytes; empty for the base model.
        salt: requests with different salts share no keys.
        keeps_token_ids: whether to keep the ids for `token_column`; events and tiers need them.
        boundaries: positions where messages end, as hints for resume points: a uint32 array, or
            little-endian u32 bytes.

    Attributes:
        num_tokens: number of known tokens.
        adapter_uid: as passed.
        salt: as passed.
        boundaries: [num_boundaries] uint32.
        seed: parent of the first key; empty for the base model without a salt.
        resume_points: resume points by cache group, cached here so that boundaries are sorted
            once; see `ArenaSpace`.
    """

    __slots__ = (
        "_column",
        "_keys",
        "_parent",
        "_stride",
        "_tail",
        "adapter_uid",
        "boundaries",
        "num_tokens",
        "resume_points",
        "salt",
        "seed",
    )

    def __init__(
        self,
        tokens_per_block: int,
        *,
        adapter_uid: bytes = b"",
        salt: bytes = b"",
        keeps_token_ids: bool = False,
        boundaries: TokenIds | bytes = b"",
    ) -> None:
        if tokens_per_block < 1:
            raise ValueError(f"tokens_per_block must be at least 1, got {tokens_per_block}")
        self._stride = tokens_per_block * _BYTES_PER_ID
        if isinstance(boundaries, bytes):
            boundaries = np.frombuffer(boundaries, "<u4").astype(np.uint32, copy=False)
        self.boundaries = boundaries
        self.resume_points: dict[str, Any] = {}
        self.adapter_uid = adapter_uid
        self.salt = salt
        self.seed = _chain_seed(adapter_uid, salt)
        self._parent = self.seed
        self._keys: list[bytes] = []
        self._tail = b""
        self._column = bytearray() if keeps_token_ids else None
        self.num_tokens = 0

    @property
    def tokens_per_block(self) -> int:
        """Number of tokens that one key covers beyond its parent."""
        return self._stride // _BYTES_PER_ID

    @property
    def num_blocks(self) -> int:
        """Number of full blocks, each with a key."""
        return self.num_tokens // self.tokens_per_block

    def extend(self, token_ids: TokenIds | bytes) -> None:
        """Appends tokens: a uint32 array, or little-endian u32 bytes as in the contract."""
        if isinstance(token_ids, bytes):
            if len(token_ids) % _BYTES_PER_ID:
                raise ValueError(
                    f"{len(token_ids)} bytes are not a multiple of 4, so they are not u32 token ids"
                )
            column = token_ids
        else:
            if getattr(token_ids, "dtype", None) != _U32 or token_ids.ndim != 1:
                raise ValueError(
                    f"token_ids must be an [n] uint32 array or bytes, got {_what(token_ids)}"
                )
            column = (token_ids if _IS_LITTLE else token_ids.byteswap()).tobytes()
        self._tail += column
        if self._column is not None:
            self._column += column
        self.num_tokens += len(column) // _BYTES_PER_ID

    def slice(self, start: int, stop: int) -> list[bytes]:
        """Returns the keys of blocks `[start, stop)`; `stop` is at most `num_blocks`."""
        if not 0 <= start <= stop <= self.num_blocks:
            raise ValueError(
                f"blocks [{start}, {stop}) are out of range: there are {self.num_blocks} blocks"
            )
        if stop > len(self._keys):
            self._hash_tail()
        return self._keys[start:stop]

    def at(self, block: int) -> bytes:
        """Returns the key of a block; `block` is less than `num_blocks`."""
        if block >= len(self._keys):
            self._hash_tail()
        return self._keys[block]

    def token_column(self, start: int, stop: int) -> bytes:
        """Returns the token ids of blocks `[start, stop)` as little-endian u32 bytes.

        Raises:
            ValueError: the ids were not kept, or there are fewer blocks.
        """
        if self._column is None:
            raise ValueError("these keys do not keep their token ids")
        if not 0 <= start <= stop <= self.num_blocks:
            raise ValueError(
                f"blocks [{start}, {stop}) are out of range: there are {self.num_blocks} blocks"
            )
        return bytes(self._column[start * self._stride : stop * self._stride])

    def _hash_tail(self) -> None:
        stride, tail, parent = self._stride, self._tail, self._parent
        end = len(tail) - len(tail) % stride
        append = self._keys.append
        for start in range(0, end, stride):
            parent = xxh3_128_digest(parent + tail[start : start + stride])
            append(parent)
        self._parent = parent
        self._tail = tail[end:]


def num_ids(token_ids: TokenIds | bytes) -> int:
    """Returns the number of tokens in an array or in bytes."""
    num = len(token_ids)
    return num // _BYTES_PER_ID if isinstance(token_ids, bytes) else num


def _what(given: object) -> str:
    if isinstance(given, np.ndarray):
        return f"{list(given.shape)} {given.dtype}"
    return type(given).__name__


def _chain_seed(adapter_uid: bytes, salt: bytes) -> bytes:
    if not adapter_uid and not salt:
        return b""
    seed: bytes = xxh3_128_digest(len(adapter_uid).to_bytes(8, "little") + adapter_uid + salt)
    return seed
