"""Boxes of matrices in 16 bits: the unit that TMA copies for the Gluon kernels of fused_linear."""

import torch
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from openinfer_kernels.ops.fused_linear._tuning import BOX

LAYOUT = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
"""Layout of a box in shared memory, as warpgroup products read it: rows of 128 bytes, swizzled."""


def boxes_of(matrix: torch.Tensor, num_rows: int, num_columns: int = BOX) -> TensorDescriptor:
    """Returns the TMA descriptor of boxes [num_rows, num_columns] of a contiguous matrix.

    Elements outside of the matrix are loaded as zeros, and not stored.
    """
    shape = list(matrix.shape)
    return TensorDescriptor(matrix, shape, [shape[1], 1], [num_rows, num_columns], LAYOUT)
