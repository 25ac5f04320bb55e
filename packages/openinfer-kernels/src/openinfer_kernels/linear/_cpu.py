"""linear on the CPU: bf16 weights stream through ATen for one or two rows, oneDNN beyond.

oneDNN reads a bf16 weight at half the speed of the memory bus when there is one row, ATen's own
kernel at nearly all of it; from three rows on oneDNN wins (measured on AVX-512 with bf16, a whole
model's step: 288 against 149 ms at one row, 294 against 280 at three, 367 against 741 at eight).
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F

from openinfer_kernels.linear import Linear, LinearSpec

_MAX_ROWS_WITHOUT_ONEDNN = 2


def supports(spec: LinearSpec, device: torch.device) -> str | None:
    """Every spec on a CPU."""
    return None if device.type == "cpu" else f"needs a CPU, this is {device.type}"


def plan(spec: LinearSpec, device: torch.device | str) -> Linear:
    """Binds linear. The bf16 one is for one thread of the process: the oneDNN switch is global."""
    if spec.dtype is not torch.bfloat16:
        return F.linear

    # The context manager of torch.backends.mkldnn also rewrites flags that are none of our
    # business, warns about one of them, and costs five times as much.
    set_flags: Callable[..., tuple[bool, ...]] = torch.backends.mkldnn.set_flags

    def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > _MAX_ROWS_WITHOUT_ONEDNN:
            return F.linear(x, weight)
        previous = set_flags(_enabled=False)
        try:
            return F.linear(x, weight)
        finally:
            set_flags(_enabled=previous[0])

    return linear
