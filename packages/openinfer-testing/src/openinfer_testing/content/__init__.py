"""A model whose answers depend on every cache entry it reads, as an executor of plans.

Whoever schedules wrongly gets other tokens: `alone` says which are right.
"""

from openinfer_testing.content._executor import ContentExecutor
from openinfer_testing.content._hostile import HostilePolicy, Hostility
from openinfer_testing.content._model import EOS, VOCAB_SIZE, alone

__all__ = ["ContentExecutor", "HostilePolicy", "Hostility", "alone", "EOS", "VOCAB_SIZE"]
