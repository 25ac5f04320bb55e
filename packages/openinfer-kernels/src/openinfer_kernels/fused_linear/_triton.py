"""fused_linear in Triton for steps of one row; more rows are composed.

A step of one row is the reading of weights, so what the row needs besides (its norm, its gate, its
residual) is done where the weight goes by. From two rows on Triton's matrix products were found to
be no faster than the library's (one H200, a layer of Qwen3-4B at 8 rows: 66 us both).
"""

from typing import Any, NamedTuple

import torch
import triton

from openinfer_kernels._triton_support import (
    TRITON_DTYPES,
    CompileCase,
    launches_dependents,
    why_not_triton,
)
from openinfer_kernels.fused_linear import FusedLinear, FusedLinearSpec
from openinfer_kernels.fused_linear._composed import Composed
from openinfer_kernels.fused_linear._triton_kernels import gemv_kernel
from openinfer_kernels.linear import LinearSpec, PackedWeight

_MANY_OUTPUTS = 32_768
_FEW_INPUTS = 4096


class Tile(NamedTuple):
    """Outputs and inputs multiplied at a time, and warps of a program."""

    num_out: int
    num_in: int
    num_warps: int


def supports(spec: FusedLinearSpec, device: torch.device) -> str | None:
    """Weights in a float dtype."""
    if spec.linear.quantization is not None:
        return f"has no product with {spec.linear.quantization} weights"
    return why_not_triton(spec.linear.dtype, device)


def choose_tile(spec: FusedLinearSpec) -> Tile:
    """The tile, as found on an H200: few inputs where they are worked on, else many."""
    if spec.norm_eps is not None:
        return Tile(4, 256, 4) if spec.is_gated else Tile(8, 256, 2)
    if spec.num_outputs > _MANY_OUTPUTS:
        return Tile(2, 1024, 2)
    return Tile(4 if spec.linear.in_features <= _FEW_INPUTS else 2, 2048, 4)


def plan(spec: FusedLinearSpec, device: torch.device | str) -> FusedLinear:
    """Binds fused_linear."""
    return _Fused(spec, torch.device(device))


class _Fused(Composed):
    """One kernel for one row, the parts in turn for more."""

    def __init__(self, spec: FusedLinearSpec, device: torch.device) -> None:
        super().__init__(spec, device, "auto", "auto")
        tile = choose_tile(spec)
        self._num_outputs = spec.num_outputs
        self._eps = spec.norm_eps or 0.0
        self._grid = (triton.cdiv(spec.num_outputs, tile.num_out),)
        self._options = {**constexprs(spec, tile), "num_warps": tile.num_warps}
        self._options["PDL"] = has_pdl = launches_dependents(device)
        if has_pdl:
            self._options["launch_pdl"] = True

    def __call__(
        self,
        x: torch.Tensor,
        weight: PackedWeight,
        /,
        norm_weight: torch.Tensor | None = None,
        residual: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if x.shape[0] != 1:
            return super().__call__(x, weight, norm_weight, residual, out)
        # A program reads the residual where it writes the sum, so one may lie over the other.
        if residual is not None:
            out = residual
        if out is None:
            out = torch.empty((1, self._num_outputs), dtype=x.dtype, device=x.device)
        kernel: Any = gemv_kernel
        kernel[self._grid](x, weight[0], norm_weight, residual, out, self._eps, **self._options)
        return out


def constexprs(spec: FusedLinearSpec, tile: Tile) -> dict[str, Any]:
    """Compile-time choices, but PDL."""
    return {
        "IN": spec.linear.in_features,
        "OUT": spec.num_outputs,
        "TILE_OUT": tile.num_out,
        "TILE_IN": tile.num_in,
        "NORM": spec.norm_eps is not None,
        "GATED": spec.is_gated,
        "ADD": spec.adds_residual,
    }


# Products of Qwen3-4B and 8B: what is fused with them, inputs, stored outputs.
_COMPILED: tuple[tuple[dict[str, Any], int, int], ...] = (
    ({"norm_eps": 1e-6}, 2560, 6144),
    ({"norm_eps": 1e-6, "is_gated": True}, 4096, 24_576),
    ({"adds_residual": True}, 9728, 2560),
    ({}, 2560, 151_936),
)


def compile_cases() -> list[CompileCase]:
    """The products above, in each dtype."""
    cases = []
    for dtype, name in TRITON_DTYPES.items():
        for parts, num_in, num_out in _COMPILED:
            linear = LinearSpec(in_features=num_in, out_features=num_out, dtype=dtype)
            spec = FusedLinearSpec(linear=linear, **parts)
            tile = choose_tile(spec)
            pointers = ("x_ptr", "weight_ptr", "norm_ptr", "residual_ptr", "out_ptr")
            cases.append(
                CompileCase(
                    name=f"fused_linear-{name}-{num_in}x{num_out}",
                    kernel=gemv_kernel,
                    signature={**dict.fromkeys(pointers, f"*{name}"), "eps": "fp32"},
                    constexprs=constexprs(spec, tile),
                    num_warps=tile.num_warps,
                    has_pdl=True,
                )
            )
    return cases
