"""The logical KV cache: which sequence owns which block, which blocks are shared and evictable.

A scheduler uses `KVCache`, and one `SequenceCache` for each request. A different cache can be built
from their parts: leases and `BlockPool`.
"""

from openinfer_kv_cache._cache import KVCache
from openinfer_kv_cache._keys import HASH_RECIPE, BlockKeys, TokenIds
from openinfer_kv_cache._sequence import PrefixHit, SequenceCache
from openinfer_kv_cache._stats import CacheStats, GroupStats
from openinfer_kv_cache._steps import Reservation
from openinfer_kv_cache.arena._slabs import SlabLayout, plan_slabs
from openinfer_kv_cache.errors import (
    KVCacheError,
    KVEventError,
    LeaseUsed,
    NotIdle,
    PublisherError,
    StepOrderError,
    UnsupportedGroup,
)
from openinfer_kv_cache.events._batch import KVEventBatch
from openinfer_kv_cache.events._config import KVEventsConfig
from openinfer_kv_cache.events._events import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent
from openinfer_kv_cache.events._zmq import ZmqPublisher
from openinfer_kv_cache.eviction._lru import BlockIds
from openinfer_kv_cache.eviction._policies import (
    EVICTION_POLICIES,
    FrequencyEviction,
    PriorityEviction,
)
from openinfer_kv_cache.eviction._policy import CacheUse, EvictionPolicy, EvictionRank
from openinfer_kv_cache.groups._cache_group import CacheGroup, Plane, Resume
from openinfer_kv_cache.groups._recurrent_state import BlockCopy
from openinfer_kv_cache.pool._lease import CachedLease, MutableLease, SealedLease
from openinfer_kv_cache.pool._pool import BlockPool

__all__ = [
    "KVCache",
    "SequenceCache",
    "Reservation",
    "BlockCopy",
    "PrefixHit",
    "BlockKeys",
    "HASH_RECIPE",
    "CacheGroup",
    "Plane",
    "Resume",
    "SlabLayout",
    "plan_slabs",
    "CacheStats",
    "GroupStats",
    "EvictionPolicy",
    "EvictionRank",
    "CacheUse",
    "FrequencyEviction",
    "PriorityEviction",
    "EVICTION_POLICIES",
    "KVEvent",
    "BlockStored",
    "BlockRemoved",
    "AllBlocksCleared",
    "KVEventBatch",
    "KVEventsConfig",
    "ZmqPublisher",
    "BlockPool",
    "MutableLease",
    "SealedLease",
    "CachedLease",
    "BlockIds",
    "TokenIds",
    "KVCacheError",
    "UnsupportedGroup",
    "LeaseUsed",
    "StepOrderError",
    "NotIdle",
    "KVEventError",
    "PublisherError",
]
