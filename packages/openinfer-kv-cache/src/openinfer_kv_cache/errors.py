"""Errors of the KV cache.

KVCacheError
├── UnsupportedGroup   a cache group of a kind that this version does not keep
├── LeaseUsed          a lease, hit, reservation or sequence was used after it was consumed
├── StepOrderError     steps were begun, completed or cancelled out of order
├── NotIdle            blocks, leases or steps are left over where none may be
├── KVEventError       bytes that are no batch of KV events
└── PublisherError     events cannot be published as configured

No room and no hit are outcomes, not errors: they come back as None and as an empty hit.
"""

from openinfer_contract import OpenInferError


class KVCacheError(OpenInferError):
    """Root of this package's errors."""


class UnsupportedGroup(KVCacheError):
    """A cache group cannot be kept.

    Attributes:
        name: the group.
        kind: its kind.
    """

    def __init__(self, name: str, kind: str, reason: str) -> None:
        super().__init__(f"cache group {name!r} of kind {kind!r}: {reason}")
        self.name = name
        self.kind = kind


class LeaseUsed(KVCacheError):
    """A handle was used after a transition consumed it."""


class StepOrderError(KVCacheError):
    """Steps begin in rising order, complete oldest first; only the newest can be cancelled."""


class NotIdle(KVCacheError):
    """Something is left over; the message counts what."""


class KVEventError(KVCacheError):
    """Bytes cannot be read as a batch of KV events."""


class PublisherError(KVCacheError):
    """Events cannot be published as configured; the message names the key and the way out."""
