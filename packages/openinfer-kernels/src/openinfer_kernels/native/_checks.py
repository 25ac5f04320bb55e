"""What a native function refuses, in words; the conditions stand where the calls are.

They are written out there, a few hundred nanoseconds each: a step of one token calls the native
functions some 300 times.
"""

import torch


def refused(op: str, wanted: str, **given: torch.Tensor) -> ValueError:
    """Returns the error of a call whose tensors are not what the op was planned for.

    Args:
        op: Name of the op.
        wanted: What it takes.
        given: The tensors, by the names of their arguments.
    """
    seen = "; ".join(f"{name} {_described(tensor)}" for name, tensor in given.items())
    return ValueError(f"{op} takes {wanted}, on the CPU; got {seen}")


def _described(tensor: torch.Tensor) -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{list(tensor.shape)} {dtype} on {tensor.device}, strides {list(tensor.stride())}"
