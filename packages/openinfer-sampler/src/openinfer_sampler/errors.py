"""Errors of the sampler.

SamplerError
└── RowTooSmall   a request has more stop ids, bad words or ids of a bad word than a row holds
"""

from openinfer_contract import OpenInferError


class SamplerError(OpenInferError):
    """Root of this package's errors."""


class RowTooSmall(SamplerError):
    """A field of a request has more entries than a row of the tables holds.

    Attributes:
        field: Name of the field.
        got: Entries of the field.
        limit: Upper bound on the entries.
    """

    def __init__(self, field: str, got: int, limit: int) -> None:
        super().__init__(f"{field} has {got} entries, but this sampler takes at most {limit}")
        self.field = field
        self.got = got
        self.limit = limit
