"""Errors of the sampler.

SamplerError
└── RowTooSmall   a request has more stop ids, bad words or ids of one than a row holds
"""

from openinfer_contract import OpenInferError


class SamplerError(OpenInferError):
    """Root of this package's errors."""


class RowTooSmall(SamplerError):
    """A request has more of something than a row holds.

    Attributes:
        field: of the request.
        got: how many it has.
        limit: how many a row holds.
    """

    def __init__(self, field: str, got: int, limit: int) -> None:
        super().__init__(f"{field} has {got} entries, this sampler takes {limit}")
        self.field = field
        self.got = got
        self.limit = limit
