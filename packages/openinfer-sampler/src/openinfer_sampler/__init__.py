"""Logits to tokens: every sampling control, counter-based seeds and logprobs.

`Sampler` keeps the parameters of every sequence in tables on the device, one row per slot. It draws
one token for each row of a step and never blocks the host.
"""

from openinfer_kernels import upload
from openinfer_sampler._logprobs import unpack_scores
from openinfer_sampler._sampler import (
    CAPTURED_NEEDS,
    MIN_SCORED_ROWS,
    HostTokens,
    SampledTokens,
    Sampler,
)
from openinfer_sampler._sampling_rows import HONOURED
from openinfer_sampler.errors import RowTooSmall, SamplerError

__all__ = [
    # Drawing
    "Sampler",
    "SampledTokens",
    "HostTokens",
    "HONOURED",
    "CAPTURED_NEEDS",
    # Logprobs of given tokens
    "MIN_SCORED_ROWS",
    "unpack_scores",
    # Copies that do not block the host
    "upload",
    # Errors
    "SamplerError",
    "RowTooSmall",
]
