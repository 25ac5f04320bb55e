"""A matrix product together with the ops around it in a transformer layer.

`y = residual + act(rms_norm(x) @ weight.T)`; every part but the product is optional. In a decode
step a product takes as long as reading its weight. A separate kernel for a norm, an activation or
an addition takes as long as reading a few more megabytes.
"""

from dataclasses import dataclass
from typing import Protocol, cast

import torch

from openinfer_kernels.dispatch._choice import backend_module, is_of_part
from openinfer_kernels.ops.linear import LinearSpec, PackedWeight


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedLinearSpec:
    """The product and the ops around it, fixed when the model is built.

    Attributes:
        linear: Spec of the product itself; `out_features` are the stored rows of the weight.
        norm_eps: Eps of the `rms_norm` of the inputs; None if they are not normalised.
        is_gated: Whether the first half of the product gates the second half, as in
            `silu_and_mul`. The result then has half as many features.
        adds_residual: Whether the result is added to a residual.
    """

    linear: LinearSpec
    norm_eps: float | None = None
    is_gated: bool = False
    adds_residual: bool = False

    def __post_init__(self) -> None:
        """Checks that there is an up for each gate."""
        if self.is_gated and self.linear.out_features % 2:
            raise ValueError(
                f"a gated product needs an even out_features, got {self.linear.out_features}"
            )

    @property
    def num_outputs(self) -> int:
        """Returns the features of the result."""
        return self.linear.out_features // (2 if self.is_gated else 1)


class FusedLinear(Protocol):
    """The `fused_linear` that `plan_fused_linear` returns."""

    def pack(self, weight: torch.Tensor, /) -> PackedWeight:
        """Brings a stored weight into the order of the back end; see `Linear.pack`."""
        ...

    def rows(self, weight: PackedWeight, index: torch.Tensor, /) -> torch.Tensor:
        """Looks up rows of the weight; see `Linear.rows`."""
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
        """Normalises, multiplies, gates and adds the residual, as far as the spec says.

        Args:
            x: [num_tokens, in_features], contiguous; not modified.
            weight: What `pack` returned.
            norm_weight: [in_features]; None if the spec has no `norm_eps`.
            residual: [num_tokens, num_outputs], contiguous, if the spec adds a residual. A back end
                may overwrite it and return it.
            out: [num_tokens, num_outputs], contiguous, for the result of a spec that adds no
                residual; None allocates a tensor.

        Returns:
            [num_tokens, num_outputs]. Sums are float32. A fused kernel rounds less often
            than the separate ops.
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
    """Chooses a back end of `fused_linear` and binds it to a spec and a device.

    Args:
        spec: The product and the ops around it.
        device: Device of all tensors.
        backend: "auto", a back end of `fused_linear`, or one of `linear`. With the latter, the
            parts run one after another, and `linear` by that back end.

    Raises:
        BackendUnavailable: The back end cannot run this spec on this device.
    """
    if is_of_part("linear", "fused_linear", backend):
        module = backend_module("fused_linear", spec, device, "composed")
        return cast(FusedLinear, module.plan(spec, device, linear_backend=backend))
    module = backend_module("fused_linear", spec, device, backend)
    return cast(FusedLinear, module.plan(spec, device))
