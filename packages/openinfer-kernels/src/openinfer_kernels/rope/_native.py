"""rope in one native call, queries and keys together."""

import torch

from openinfer_kernels._native import library, why_not
from openinfer_kernels.rope import Rope, RopeSpec


def supports(spec: RopeSpec, device: torch.device) -> str | None:
    """bf16 on a CPU with the native kernels."""
    return why_not(spec.dtype, device)


def plan(spec: RopeSpec, device: torch.device | str) -> Rope:
    """Binds rope."""
    native = library().rope
    sizes = (spec.num_heads, spec.num_kv_heads, spec.head_dim)

    def rope(
        q: torch.Tensor, k: torch.Tensor, cos_sin: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        q_out, k_out = torch.empty(q.shape, dtype=q.dtype), torch.empty(k.shape, dtype=k.dtype)
        native(
            q_out.data_ptr(),
            k_out.data_ptr(),
            q.data_ptr(),
            k.data_ptr(),
            cos_sin.data_ptr(),
            positions.data_ptr(),
            q.shape[0],
            *sizes,
            q.stride(0),
            k.stride(0),
            torch.get_num_threads(),
        )
        return q_out, k_out

    return rope
