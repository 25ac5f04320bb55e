"""Errors of the KV cache.

KVCacheError
├── UnsupportedGroup   a cache group that this version does not support
├── LeaseUsed          a lease, hit, reservation or sequence was used after it was consumed
├── StepOrderError     steps were begun, completed or cancelled out of order
├── NotIdle            blocks, leases or steps are left over
├── KVEventError       bytes that are not a batch of KV events
└── PublisherError     events cannot be published as configured

A lack of room and a prefix miss are no errors: the calls return None and an empty hit.
"""

from openinfer_contract import OpenInferError


class KVCacheError(OpenInferError):
    """Root of this package's errors."""


class UnsupportedGroup(KVCacheError):
    """A cache group is not supported.

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
    """Steps were begun, completed or cancelled out of order."""


class NotIdle(KVCacheError):
    """Blocks, leases or steps are left over; the message has the counts."""


class KVEventError(KVCacheError):
    """Bytes cannot be read as a batch of KV events."""


class PublisherError(KVCacheError):
    """Events cannot be published as configured; the message names the key and what to do."""
