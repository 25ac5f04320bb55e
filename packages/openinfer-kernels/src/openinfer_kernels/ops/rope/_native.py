"""rope as one native call for queries and keys."""

import torch

from openinfer_kernels.native import library, why_not, wrong_tensors
from openinfer_kernels.ops.rope import Rope, RopeSpec


def supports(spec: RopeSpec, device: torch.device) -> str | None:
    """Returns None if the native kernels run on this device in this dtype, else the reason."""
    return why_not(spec.dtype, device)


def plan(spec: RopeSpec, device: torch.device | str) -> Rope:
    """Returns `rope` for a spec and a device."""
    native = library().rope
    sizes = (spec.num_heads, spec.num_kv_heads, spec.head_dim)
    q_shape, k_shape = (sizes[0], sizes[2]), (sizes[1], sizes[2])
    heads = (spec.head_dim, 1)
    wanted = (
        f"q [num_tokens, {sizes[0]}, {sizes[2]}] and k [num_tokens, {sizes[1]}, {sizes[2]}] in "
        f"bf16, heads contiguous, cos_sin [max_positions, {sizes[2]}] in float32 and positions "
        "[num_tokens] in int64, contiguous"
    )

    def rope(
        q: torch.Tensor, k: torch.Tensor, cos_sin: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        num_tokens = positions.numel()
        if (
            q.dtype is not torch.bfloat16
            or k.dtype is not torch.bfloat16
            or cos_sin.dtype is not torch.float32
            or positions.dtype is not torch.int64
            or q.shape != (num_tokens, *q_shape)
            or k.shape != (num_tokens, *k_shape)
            or q.stride()[1:] != heads
            or k.stride()[1:] != heads
            or cos_sin.size(-1) != sizes[2]
            or not (cos_sin.is_contiguous() and positions.is_contiguous())
            or not (q.is_cpu and k.is_cpu and cos_sin.is_cpu and positions.is_cpu)
        ):
            raise wrong_tensors("rope", wanted, q=q, k=k, cos_sin=cos_sin, positions=positions)
        q_out, k_out = torch.empty(q.shape, dtype=q.dtype), torch.empty(k.shape, dtype=k.dtype)
        num_rotated = native(
            q_out.data_ptr(),
            k_out.data_ptr(),
            q.data_ptr(),
            k.data_ptr(),
            cos_sin.data_ptr(),
            positions.data_ptr(),
            cos_sin.size(0),
            num_tokens,
            *sizes,
            q.stride(0),
            k.stride(0),
            torch.get_num_threads(),
        )
        if num_rotated != num_tokens:
            position = int(positions[num_rotated])
            raise ValueError(f"rope: position {position} is not in a table of {len(cos_sin)}")
        return q_out, k_out

    return rope
