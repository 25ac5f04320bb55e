"""A matrix product together with what stands around it in a transformer layer.

`y = residual + act(rms_norm(x) @ weight.T)`, every part but the product optional. In a decode step
a product is the reading of its weight; a kernel of its own for a norm, an activation or an addition
costs as much as reading a few megabytes more.
"""

from dataclasses import dataclass
from typing import Protocol, cast

import torch

from openinfer_kernels.dispatch._choice import backend_module, is_of_part
from openinfer_kernels.ops.linear import LinearSpec, PackedWeight


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedLinearSpec:
    """What is fixed about the product when the model is built.

    Attributes:
        linear: The product itself, in all `out_features` rows that are stored.
        norm_eps: Input rows are normalised first as `rms_norm` does, with this eps; None for not.
        is_gated: Whether the first half of the product gates the second, as `silu_and_mul` does:
            half as many features come out.
        adds_residual: Whether the result is added to a residual stream.
    """

    linear: LinearSpec
    norm_eps: float | None = None
    is_gated: bool = False
    adds_residual: bool = False

    def __post_init__(self) -> None:
        """Checks that gates come in pairs."""
        if self.is_gated and self.linear.out_features % 2:
            raise ValueError(f"out_features {self.linear.out_features} are gate and up, so even")

    @property
    def num_outputs(self) -> int:
        """Features that come out."""
        return self.linear.out_features // (2 if self.is_gated else 1)


class FusedLinear(Protocol):
    """A bound `fused_linear`."""

    def pack(self, weight: torch.Tensor, /) -> PackedWeight:
        """Brings a stored weight into the backend's order, see `Linear.pack`."""
        ...

    def rows(self, weight: PackedWeight, index: torch.Tensor, /) -> torch.Tensor:
        """Looks up rows of the weight, see `Linear.rows`."""
        ...

    def __call__(
        self,
        x: torch.Tensor,
        weight: PackedWeight,
        /,
        norm_weight: torch.Tensor | None = None,
        residual: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Normalises, multiplies, activates, adds: what the spec names, and nothing else.

        Args:
            x: [num_tokens, in_features], contiguous; left as it is.
            weight: What `pack` returned.
            norm_weight: [in_features], if the spec normalises.
            residual: [num_tokens, num_outputs], contiguous, if the spec adds. It is consumed: a
                backend may overwrite it and return it.
            out: [num_tokens, num_outputs], contiguous: where the result goes, if the spec does not
                add; None makes room for it.

        Returns:
            [num_tokens, num_outputs]. Sums are float32; a backend that fuses rounds less often
            than the ops one after another do.
        """
        ...


ORDER: dict[str, tuple[str, ...]] = {
    "cpu": ("native", "composed"),
    "cuda": ("triton", "composed", "reference"),
}
"""Back ends by device type, in the order in which "auto" tries them."""

EXAMPLES = {
    "": FusedLinearSpec(
        linear=LinearSpec(in_features=2560, out_features=6144, dtype=torch.bfloat16), norm_eps=1e-6
    )
}
"""Specs that the report of back ends describes: those of Qwen3-4B in bf16."""


def plan_fused_linear(
    spec: FusedLinearSpec, device: torch.device | str, backend: str = "auto"
) -> FusedLinear:
    """Chooses and binds `fused_linear`.

    Args:
        spec: Of the product and what stands around it.
        device: Where it runs.
        backend: "auto", one of its own, or one of `linear`: then its parts run in turn, that one by
            the backend named.

    Raises:
        BackendUnavailable: The backend cannot run this spec on this device.
    """
    if is_of_part("linear", "fused_linear", backend):
        module = backend_module("fused_linear", spec, device, "composed")
        return cast(FusedLinear, module.plan(spec, device, linear_backend=backend))
    module = backend_module("fused_linear", spec, device, backend)
    return cast(FusedLinear, module.plan(spec, device))
