"""The error of a native function that got other tensors than it was planned for.

Each back end writes out its conditions where it calls the function, since that takes a few hundred
nanoseconds: a step of one token calls native functions about 300 times.
"""

import torch


def wrong_tensors(op: str, wanted: str, **given: torch.Tensor) -> ValueError:
    """Returns the error of a call with wrong tensors.

    Args:
        op: Name of the op.
        wanted: Description of the tensors that the op takes.
        given: The tensors of the call, by the names of their arguments.
    """
    seen = "; ".join(f"{name} {_described(tensor)}" for name, tensor in given.items())
    return ValueError(f"{op} takes {wanted}, on the CPU; got {seen}")


def _described(tensor: torch.Tensor) -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{list(tensor.shape)} {dtype} on {tensor.device}, strides {list(tensor.stride())}"
