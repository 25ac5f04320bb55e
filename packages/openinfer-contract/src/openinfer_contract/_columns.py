"""Columns of numbers as little-endian bytes.

Token ids and logprobs travel between processes as `bytes`. Decoding a list of 100,000 integers
takes milliseconds of the step thread; decoding the same column as bytes takes microseconds.
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
    """Returns token ids, or any u32 values, as little-endian bytes.

    Args:
        values: integers in `[0, 2**32)`.

    Raises:
        OverflowError: a value is out of that range.
    """
    return _pack("I", values)


def unpack_ids(column: bytes) -> list[int]:
    """Returns the integers of a u32 column that `pack_ids` wrote.

    Raises:
        ValueError: the length is not a multiple of four.
    """
    return _unpack("I", column)  # type: ignore[return-value]


def num_ids(column: bytes) -> int:
    """Returns the number of u32 values in a column."""
    return len(column) >> 2


def pack_floats(values: Iterable[float]) -> bytes:
    """Returns floats as a little-endian float32 column."""
    return _pack("f", values)


def unpack_floats(column: bytes) -> list[float]:
    """Returns the floats of a float32 column.

    Raises:
        ValueError: the length is not a multiple of four.
    """
    return _unpack("f", column)  # type: ignore[return-value]
