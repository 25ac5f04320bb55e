"""Executor whose tokens depend on every cache entry it reads, for tests of schedulers and caches.

If a scheduler or a cache makes a mistake, a request gets other tokens than `alone` returns.
"""

from openinfer_testing.content._executor import ContentExecutor
from openinfer_testing.content._hostile import HostilePolicy, Hostility
from openinfer_testing.content._model import EOS, VOCAB_SIZE, alone

__all__ = ["ContentExecutor", "HostilePolicy", "Hostility", "alone", "EOS", "VOCAB_SIZE"]
