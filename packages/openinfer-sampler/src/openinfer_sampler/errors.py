"""Errors of the sampler.

SamplerError
└── UnsupportedControl   a request uses a sampling control that is not honoured here
"""

from openinfer_contract import OpenInferError


class SamplerError(OpenInferError):
    """Root of this package's errors."""


class UnsupportedControl(SamplerError):
    """A request uses a sampling control that is not honoured here.

    Attributes:
        feature: its name in `openinfer_contract.FEATURES`.
    """

    def __init__(self, feature: str) -> None:
        super().__init__(f"{feature} is not supported by this sampler")
        self.feature = feature
