"""Rotary position embedding applied to queries and keys (Su et al., 2021), half-split layout.

Dimension i of a head is rotated together with dimension i + head_dim / 2 by the angle of the
token's position. The caller passes a table of angles, which includes any scaling (linear, YaRN).
"""

from dataclasses import dataclass
from typing import Protocol, cast

import torch

from openinfer_kernels.dispatch import backend_module


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    """Shape and dtype of a rotation, fixed when the model is built.

    Attributes:
        num_heads: Query heads.
        num_kv_heads: Key heads.
        head_dim: Dimensions of a head, an even number; all of them are rotated.
        dtype: Dtype of queries and keys.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype


class Rope(Protocol):
    """The planned `rope`."""

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, cos_sin: torch.Tensor, positions: torch.Tensor, /
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Rotates queries and keys to their positions.

        Args:
            q: [num_tokens, num_heads, head_dim], heads contiguous.
            k: [num_tokens, num_kv_heads, head_dim], heads contiguous.
            cos_sin: [max_positions, head_dim], float32; a row is the cosines, then the sines.
            positions: [num_tokens], int64, each below max_positions.

        Returns:
            Rotated q and k, new tensors. The arithmetic is float32, rounded once.
        """
        ...


ORDER: dict[str, tuple[str, ...]] = {
    "cpu": ("native", "torch", "reference"),
    "cuda": ("triton", "torch", "reference"),
}
"""Back ends by device type, in the order in which "auto" tries them."""

EXAMPLES = {"": RopeSpec(num_heads=32, num_kv_heads=8, head_dim=128, dtype=torch.bfloat16)}
"""Specs that the report of back ends describes: those of Qwen3-4B in bf16."""


def plan_rope(spec: RopeSpec, device: torch.device | str, backend: str = "auto") -> Rope:
    """Chooses a back end of `rope` and binds it to a spec and a device.

    Raises:
        BackendUnavailable: The back end cannot run this spec on this device.
    """
    return cast(Rope, backend_module("rope", spec, device, backend).plan(spec, device))
