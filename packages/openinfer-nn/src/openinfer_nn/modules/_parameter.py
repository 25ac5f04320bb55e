"""Parameters without gradients."""

import torch
from torch import nn

from openinfer_kernels import empty_weight


def empty_parameter(
    shape: tuple[int, ...], *, device: torch.device | str, dtype: torch.dtype
) -> nn.Parameter:
    """Allocates a weight; its contents are undefined until a loader fills them."""
    return frozen_parameter(empty_weight(shape, device=device, dtype=dtype))


def frozen_parameter(tensor: torch.Tensor) -> nn.Parameter:
    """Wraps a tensor as a parameter that keeps no gradient."""
    return nn.Parameter(tensor, requires_grad=False)
