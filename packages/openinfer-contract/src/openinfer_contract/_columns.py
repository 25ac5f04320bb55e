"""Columns of numbers as little-endian bytes.

Token ids and logprobs cross processes as `bytes`: a list of 100,000 ints costs milliseconds of a
step thread to decode, the same column as bytes costs microseconds.
"""

import sys
from array import array
from collections.abc import Iterable

_SWAP = sys.byteorder == "big"


def _pack(typecode: str, values: Iterable[int] | Iterable[float]) -> bytes:
    column = array(typecode, values)
    if _SWAP:
        column.byteswap()
    return column.tobytes()


def _unpack(typecode: str, column: bytes) -> list[int] | list[float]:
    values: array[int] | array[float] = array(typecode)
    values.frombytes(column)
    if _SWAP:
        values.byteswap()
    return values.tolist()


def pack_ids(values: Iterable[int]) -> bytes:
    """Token ids (or any u32 column) as little-endian bytes.

    Args:
        values: integers in `[0, 2**32)`.

    Raises:
        OverflowError: if a value does not fit.
    """
    return _pack("I", values)


def unpack_ids(column: bytes) -> list[int]:
    """The integers of a u32 column, as `pack_ids` wrote it.

    Raises:
        ValueError: if the length is no multiple of four.
    """
    return _unpack("I", column)  # type: ignore[return-value]


def num_ids(column: bytes) -> int:
    """How many u32 values a column holds."""
    return len(column) >> 2


def pack_floats(values: Iterable[float]) -> bytes:
    """A float32 column as little-endian bytes."""
    return _pack("f", values)


def unpack_floats(column: bytes) -> list[float]:
    """The floats of a float32 column.

    Raises:
        ValueError: if the length is no multiple of four.
    """
    return _unpack("f", column)  # type: ignore[return-value]
