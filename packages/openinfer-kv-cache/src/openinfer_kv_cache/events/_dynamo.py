"""Dynamo's 64-bit hashes of blocks, for events.

A block hash is xxh3-64 with seed 1337 over the block's token ids as little-endian u32. A sequence
hash chains them: that of a first block is its block hash, every other one is xxh3-64 with the same
seed over the parent's sequence hash and the block hash, both little-endian u64. Our own keys are
longer and stay inside; these leave the process, so that what we publish can be checked, or merged
with what another engine publishes, from the token ids alone.

Adapter and salt have no place in that recipe. Chains that have either start below a root made of
our own seed instead of at their first block, so that equal tokens under another salt hash apart.
"""

from xxhash import xxh3_64_intdigest

_SEED = 1337
_U64 = 8


def sequence_hashes(
    token_ids: bytes, tokens_per_block: int, parent: int | None = None
) -> list[int]:
    """Sequence hashes of full blocks.

    Args:
        token_ids: little-endian u32 column of whole blocks.
        tokens_per_block: tokens of each.
        parent: sequence hash of the block before; None: the first block starts the sequence.
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
    """What stands above the first block of a chain: None for the base model without a salt."""
    return int.from_bytes(chain_seed[:_U64], "little") if chain_seed else None
