"""Search in columns of token ids."""

from collections.abc import Iterator

from openinfer_contract import pack_ids


def find_id(column: bytes, token_id: int) -> Iterator[int]:
    """Yields the indices of `token_id` in a u32 column, ascending."""
    pattern = pack_ids((token_id,))
    at = column.find(pattern)
    while at >= 0:
        if at % 4 == 0:
            yield at // 4
            at = column.find(pattern, at + 4)
        else:
            at = column.find(pattern, at + 1)
