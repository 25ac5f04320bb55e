"""Logits to tokens: every sampling control, counter-based seeds and logprobs.

`Sampler` keeps every sequence's parameters in a table on the device, by slot, and draws one token
a row of a step without making the host wait.
"""

from openinfer_kernels import upload
from openinfer_sampler._logprobs import unpack_scores
from openinfer_sampler._rows import HONOURED
from openinfer_sampler._sampler import (
    CAPTURED_NEEDS,
    MIN_SCORED_ROWS,
    HostTokens,
    SampledTokens,
    Sampler,
)
from openinfer_sampler.errors import RowTooSmall, SamplerError

__all__ = [
    # Drawing
    "Sampler",
    "SampledTokens",
    "HostTokens",
    "HONOURED",
    "CAPTURED_NEEDS",
    # Scoring tokens that are given
    "MIN_SCORED_ROWS",
    "unpack_scores",
    # Copying without waiting
    "upload",
    # Errors
    "SamplerError",
    "RowTooSmall",
]
