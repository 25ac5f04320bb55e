"""The definition of rope: the pair (a, b) becomes (a cos - b sin, b cos + a sin)."""

import torch

from openinfer_kernels.ops.rope import Rope, RopeSpec


def plan(spec: RopeSpec, device: torch.device | str) -> Rope:
    """Returns `rope` for a spec and a device."""

    def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        first, second = x.float().chunk(2, dim=-1)
        rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
        return rotated.to(spec.dtype)

    def rope(
        q: torch.Tensor, k: torch.Tensor, cos_sin: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        cos, sin = cos_sin[positions].unsqueeze(1).chunk(2, dim=-1)  # [T, 1, D / 2]
        return rotate(q, cos, sin), rotate(k, cos, sin)

    return rope
