"""Dynamo's 64-bit hashes of blocks, for events.

A block hash is xxh3-64 with seed 1337 over the block's token ids as little-endian u32. Sequence
hashes chain block hashes: the first equals the block hash; every other one is xxh3-64 with the
same seed over the parent's sequence hash and the block hash, both as little-endian u64. The
cache's own keys are 128 bits long and stay in the process. Sequence hashes leave it, so that a
subscriber can check them, or merge them with another engine's, from the token ids alone.

This recipe has no field for adapter and salt. A chain with either starts at a root hash made of the
cache's own seed, so that equal tokens with different salts have different hashes.
"""

from xxhash import xxh3_64_intdigest

_SEED = 1337
_U64 = 8


def sequence_hashes(
    token_ids: bytes, tokens_per_block: int, parent: int | None = None
) -> list[int]:
    """Returns the sequence hashes of full blocks.

    Args:
        token_ids: token ids of whole blocks, as little-endian u32 bytes.
        tokens_per_block: number of tokens in a block.
        parent: sequence hash of the previous block; None if the first block starts the sequence.
    """
    stride = 4 * tokens_per_block
    hashes: list[int] = []
    for start in range(0, len(token_ids), stride):
        block: int = xxh3_64_intdigest(token_ids[start : start + stride], _SEED)
        if parent is not None:
            pair = parent.to_bytes(_U64, "little") + block.to_bytes(_U64, "little")
            block = xxh3_64_intdigest(pair, _SEED)
        hashes.append(block)
        parent = block
    return hashes


def root_hash(chain_seed: bytes) -> int | None:
    """Returns the parent hash of a chain's first block; None for the base model without a salt."""
    return int.from_bytes(chain_seed[:_U64], "little") if chain_seed else None
