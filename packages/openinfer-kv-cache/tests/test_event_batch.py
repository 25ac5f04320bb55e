"""Payloads of vLLM's KV events, byte for byte, read and written."""

from typing import Any

import msgspec
import pytest

from openinfer_kv_cache import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KVEventBatch,
    KVEventError,
)

# A batch as vLLM 0.26 and later publish it, with events as maps. It has hashes of 32 bytes and of
# 64 bits, a parent, a LoRA id, a group, removed blocks, all blocks cleared, and no rank.
MAPS = bytes.fromhex(
    "93cb41d954fc402000009588a474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657392c4200000"
    "000000000000000000000000000000000000000000008000000000000000c420000000000000000000000000000000"
    "000000000000000000fffffffffffffffeb1706172656e745f626c6f636b5f6861736807a9746f6b656e5f69647398"
    "0102030405060708aa626c6f636b5f73697a6504a76c6f72615f6964c0a66d656469756da3475055a96c6f72615f6e"
    "616d65c08aa474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391cd1234b1706172656e745f"
    "626c6f636b5f68617368c0a9746f6b656e5f69647392090aaa626c6f636b5f73697a6502a76c6f72615f696403a66d"
    "656469756dc0a96c6f72615f6e616d65c0a967726f75705f69647800b26b765f63616368655f737065635f6b696e64"
    "ae66756c6c5f617474656e74696f6e88a474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391"
    "05b1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f69647393010203aa626c6f636b5f73697a6504a7"
    "6c6f72615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c083a474797065ac426c6f636b52656d6f76"
    "6564ac626c6f636b5f68617368657392cd1234c420ffffffffffffffffffffffffffffffffffffffffffffffffffff"
    "ffffffffffffa66d656469756da347505581a474797065b0416c6c426c6f636b73436c6561726564c0"
)
# A batch of an older vLLM, with events as arrays whose last field is `medium`, and rank 2.
ARRAYS = bytes.fromhex(
    "93cb405edd2f1a9fbe779397ab426c6f636b53746f72656492cf0000011f71fb04cbd2c521974f2a940a141e280407"
    "a347505593ac426c6f636b52656d6f7665649264ccc8a44449534b91b0416c6c426c6f636b73436c656172656402"
)
# A batch captured from a server of 2025: one block of 16 tokens with a parent.
CAPTURED = (
    b"\x93\xcbA\xdaW\x1cfs\x8eQ\x91\x97\xabBlockStored\x91\xcf\xf3_\xe1{\r\x81\xa2L"
    b"\xcf\xda2\x9f\xe1\xbf\x8a\xac\x01\xdc\x00\x10\xcd\x10y\xcd\x01;\xcd\x02\xa6\xcd\x03r"
    b"\xce\x00\x02P]\xcc\xc6\xce\x00\x02P\\\xce\x00\x01-#\xcc\xc6\xce\x00\x02Ps\xcc\xc6\xcd~9"
    b"\x0b\xcd\x03\x05\xcd\x01f\xcd\x04\xa0\x10\xc0\xa3GPU\x00"
)

OURS = KVEventBatch(
    1.5,
    [
        BlockStored(
            block_hashes=[14643705804678351452],
            parent_block_hash=None,
            token_ids=[1, 2, 3, 4],
            block_size=4,
            lora_id=None,
            medium="GPU",
            lora_name=None,
            group_idx=0,
            kv_cache_spec_kind="full_attention",
        ),
        BlockRemoved([7], "GPU", 0),
        AllBlocksCleared(),
    ],
    0,
)
OURS_ON_THE_WIRE = bytes.fromhex(
    "93cb3ff8000000000000938aa474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391"
    "cfcb38e4d7fb2dca5cb1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f6964739401020304"
    "aa626c6f636b5f73697a6504a76c6f72615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c0"
    "a967726f75705f69647800b26b765f63616368655f737065635f6b696e64ae66756c6c5f617474656e7469"
    "6f6e84a474797065ac426c6f636b52656d6f766564ac626c6f636b5f68617368657391"
    "07a66d656469756da3475055a967726f75705f6964780081a474797065b0416c6c426c6f636b73436c6561"
    "72656400"
)


def test_encoded_bytes_are_fixed():
    assert OURS.encode() == OURS_ON_THE_WIRE
    assert KVEventBatch.decode(OURS_ON_THE_WIRE) == OURS


def test_a_reader_written_from_the_published_format_understands_us():
    """vLLM's declarations of its events, read strictly: a missing or unknown field fails."""
    base = {"bases": (msgspec.Struct,), "tag": True, "forbid_unknown_fields": True}
    one = int | bytes
    stored = msgspec.defstruct(
        "BlockStored",
        [
            ("block_hashes", list[one]),
            ("parent_block_hash", one | None),
            ("token_ids", list[int]),
            ("block_size", int),
            ("lora_id", int | None),
            ("medium", str | None),
            ("lora_name", str | None),
            ("extra_keys", list[tuple[Any, ...] | None] | None, None),
            ("group_idx", int | None, None),
            ("kv_cache_spec_kind", str | None, None),
            ("kv_cache_spec_sliding_window", int | None, None),
        ],
        **base,
    )
    removed = msgspec.defstruct(
        "BlockRemoved",
        [
            ("block_hashes", list[one]),
            ("medium", str | None),
            ("group_idx", int | None, None),
        ],
        **base,
    )
    cleared = msgspec.defstruct("AllBlocksCleared", [], **base)
    batch = msgspec.defstruct(
        "KVEventBatch",
        [
            ("ts", float),
            ("events", list[stored | removed | cleared]),
            ("data_parallel_rank", int | None, None),
        ],
        bases=(msgspec.Struct,),
        array_like=True,
    )
    read = msgspec.msgpack.decode(OURS.encode(), type=batch)
    assert (read.ts, read.data_parallel_rank) == (1.5, 0)
    assert [type(event).__name__ for event in read.events] == [*map(_name, OURS.events)]
    assert read.events[0].block_hashes == [14643705804678351452]
    assert read.events[0].token_ids == [1, 2, 3, 4]
    assert (read.events[1].block_hashes, read.events[1].group_idx) == ([7], 0)


def _name(event):
    return type(event).__name__


def test_maps_are_read():
    batch = KVEventBatch.decode(MAPS)
    assert (batch.ts, batch.data_parallel_rank) == (1700000000.5, None)
    first, second, _, removed, cleared = batch.events
    assert [int.from_bytes(h[-8:]) for h in first.block_hashes] == [1 << 63, 2**64 - 2]
    assert (first.parent_block_hash, first.token_ids) == (7, [1, 2, 3, 4, 5, 6, 7, 8])
    assert (second.lora_id, second.medium, second.group_idx) == (3, None, 0)
    assert second.kv_cache_spec_kind == "full_attention"
    assert removed == BlockRemoved([0x1234, b"\xff" * 32], "GPU")
    assert cleared == AllBlocksCleared()


def test_arrays_are_read():
    batch = KVEventBatch.decode(ARRAYS)
    assert (batch.ts, batch.data_parallel_rank) == (123.456, 2)
    stored, removed, cleared = batch.events
    assert stored == BlockStored(
        [1234567890123, -987654321], 42, [10, 20, 30, 40], 4, 7, "GPU", None
    )
    assert removed == BlockRemoved([100, 200], "DISK")
    assert cleared == AllBlocksCleared()


def test_a_capture_is_read():
    batch = KVEventBatch.decode(CAPTURED)
    (stored,) = batch.events
    assert (len(stored.token_ids), stored.block_size) == (16, 16)
    assert stored.parent_block_hash == 0xDA329FE1BF8AAC01
    assert (stored.lora_id, stored.medium, batch.data_parallel_rank) == (None, "GPU", 0)


def test_a_batch_that_is_a_map_is_read_and_unknown_kinds_are_skipped():
    raw = {"ts": 1.0, "events": [{"type": "Mystery"}, ["Riddle", 1], {"type": "AllBlocksCleared"}]}
    batch = KVEventBatch.decode(msgspec.msgpack.encode(raw))
    assert batch == KVEventBatch(1.0, [AllBlocksCleared()], None)


@pytest.mark.parametrize(
    "raw",
    [
        17,
        [],
        [1.0],
        ["now", []],
        [1.0, [{"block_hashes": []}]],
        [1.0, [[]]],
        [1.0, [3]],
        [1.0, [{"type": ["BlockRemoved"], "block_hashes": [1]}]],
        [1.0, [{"type": "BlockRemoved", "block_hashes": ["x"]}]],
        [1.0, [{"type": "BlockStored", "block_hashes": [1]}]],
        [1.0, [], "rank"],
    ],
)
def test_nonsense_is_refused(raw):
    with pytest.raises(KVEventError, match="batch"):
        KVEventBatch.decode(msgspec.msgpack.encode(raw))


def test_bytes_that_are_not_msgpack_are_refused():
    with pytest.raises(KVEventError):
        KVEventBatch.decode(b"\xc1nonsense")
