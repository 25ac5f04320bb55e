"""Weights without a checkpoint, for measurements that do not depend on their values."""

import torch
from torch import nn

_STD = 0.02


def fill_dummy_weights(module: nn.Module) -> None:
    """Fills the parameters of a module, which is not packed yet, with the same numbers every time.

    Matrices and biases are drawn from a normal distribution of standard deviation 0.02. Other
    vectors are scales of norms and become 1.
    """
    for index, (name, parameter) in enumerate(module.named_parameters()):
        if parameter.dim() < 2 and not name.endswith("bias"):
            parameter.fill_(1.0)
            continue
        generator = torch.Generator(parameter.device).manual_seed(index)
        parameter.normal_(0.0, _STD, generator=generator)
