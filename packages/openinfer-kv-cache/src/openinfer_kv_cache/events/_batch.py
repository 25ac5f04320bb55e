"""Batches of events as bytes, in vLLM's msgpack format and its older variants.

A batch is the array `[time, [event, ...], data_parallel_rank]`. An event is a map with the name of
its class under `type`; older engines send an array that begins with the name. This module writes
maps and reads both, and also reads a batch that is itself a map.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from openinfer_kv_cache.errors import KVEventError
from openinfer_kv_cache.events._events import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent


class KVEventBatch(Struct, frozen=True, array_like=True):
    """The events that are published together.

    Attributes:
        ts: when the events were collected, in seconds since the epoch.
        events: in the order in which they happened.
        data_parallel_rank: the engine's rank; None if the engine does not state it.
    """

    ts: float
    events: list[KVEvent]
    data_parallel_rank: int | None = None

    def encode(self) -> bytes:
        """Returns the bytes of the last frame of a message."""
        return _encoder.encode(self)

    @classmethod
    def decode(cls, payload: bytes) -> "KVEventBatch":
        """Reads a batch in any variant; skips unknown fields and kinds of events.

        Raises:
            KVEventError: the payload is not a batch of events, or a known field has a wrong type.
        """
        try:
            raw = msgspec.msgpack.decode(payload)
            if isinstance(raw, list):
                raw = dict(zip(cls.__struct_fields__, raw, strict=False))
            events = [event for each in raw["events"] if (event := _event(each)) is not None]
            return msgspec.convert([raw["ts"], events, raw.get("data_parallel_rank")], cls)
        except (msgspec.MsgspecError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise KVEventError(f"not a batch of KV events: {error}") from error


_EVENTS: dict[str, type[Struct]] = {
    event.__name__: event for event in (BlockStored, BlockRemoved, AllBlocksCleared)
}
_encoder = msgspec.msgpack.Encoder()


def _event(raw: dict[str, Any] | Sequence[Any]) -> Struct | None:
    if isinstance(raw, dict):
        kind, fields = _EVENTS.get(raw["type"]), raw
    else:
        kind = _EVENTS.get(raw[0])
        fields = {} if kind is None else dict(zip(kind.__struct_fields__, raw[1:], strict=False))
    if kind is None:
        return None
    absent = dict.fromkeys(("lora_id", "medium", "lora_name"))
    return msgspec.convert({**absent, **fields, "type": kind.__name__}, kind)
