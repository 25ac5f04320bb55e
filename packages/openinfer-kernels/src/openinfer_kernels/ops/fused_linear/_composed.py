"""fused_linear as its parts, one after another, each by the back end that suits the device."""

import torch

from openinfer_kernels.dispatch import find_op, why_not
from openinfer_kernels.ops.fused_linear import FusedLinear, FusedLinearSpec
from openinfer_kernels.ops.linear import Linear, PackedWeight, plan_linear
from openinfer_kernels.ops.rms_norm import RMSNormSpec, plan_rms_norm
from openinfer_kernels.ops.silu_and_mul import SiluAndMulSpec, plan_silu_and_mul


def supports(spec: FusedLinearSpec, device: torch.device) -> str | None:
    """Returns None if some back end of `linear` runs this spec here, else the reasons."""
    backends = find_op("linear").order_on(device.type)
    reasons = [why_not("linear", spec.linear, device, backend) for backend in backends]
    if any(reason is None for reason in reasons):
        return None
    return "; ".join(reason for reason in reasons if reason)


def plan(
    spec: FusedLinearSpec,
    device: torch.device | str,
    *,
    backend: str = "auto",
    linear_backend: str | None = None,
) -> FusedLinear:
    """Binds the parts, `linear` by `linear_backend` if it is given, the others by `backend`."""
    return Composed(spec, torch.device(device), backend, linear_backend or backend)


class Composed:
    """The parts of fused_linear, one after another."""

    def __init__(
        self, spec: FusedLinearSpec, device: torch.device, backend: str, linear_backend: str
    ) -> None:
        """Plans the parts that the spec names."""
        linear, dtype = spec.linear, spec.linear.dtype
        self._linear: Linear = plan_linear(linear, device, linear_backend)
        self.pack, self.rows = self._linear.pack, self._linear.rows
        self._norm = self._gate = None
        if spec.norm_eps is not None:
            norm = RMSNormSpec(hidden_size=linear.in_features, eps=spec.norm_eps, dtype=dtype)
            self._norm = plan_rms_norm(norm, device, backend)
        if spec.is_gated:
            gate = SiluAndMulSpec(intermediate_size=spec.num_outputs, dtype=dtype)
            self._gate = plan_silu_and_mul(gate, device, backend)
        # cuBLAS can add the residual and write into `out` itself; other products need operators.
        self._is_cublas = (
            device.type == "cuda"
            and linear_backend in ("auto", "torch")
            and linear.quantization is None
        )

    def __call__(
        self,
        x: torch.Tensor,
        weight: PackedWeight,
        /,
        norm_weight: torch.Tensor | None = None,
        residual: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if self._norm is not None:
            assert norm_weight is not None, "norm_weight is missing"
            x = self._norm(x, norm_weight)
        if self._is_cublas and self._gate is None:
            if residual is not None:
                return residual.addmm_(x, weight[0].t())
            if out is not None:
                return torch.mm(x, weight[0].t(), out=out)
        product = self._linear(x, weight)
        if self._gate is not None:
            product = self._gate(product)
        if residual is not None:
            return residual.add_(product)
        return product if out is None else out.copy_(product)
