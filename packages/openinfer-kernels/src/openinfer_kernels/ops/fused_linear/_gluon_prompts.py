"""How gate and up of prompts are launched on Hopper, see `_gluon_prompts_kernels`."""

from typing import Any, NamedTuple

import torch
import triton

from openinfer_kernels.gpu._support import TRITON_DTYPES, CompileCase, why_not_hopper
from openinfer_kernels.ops.fused_linear import FusedLinearSpec
from openinfer_kernels.ops.fused_linear._gluon_many_rows import boxes_of
from openinfer_kernels.ops.fused_linear._gluon_many_rows_kernels import BOX, LAYOUT
from openinfer_kernels.ops.fused_linear._gluon_prompts_kernels import (
    HALF_ROWS,
    NUM_WARPS,
    TILE_OUT,
    TILE_ROWS,
    prompts_kernel,
)
from openinfer_kernels.ops.linear import PackedWeight

_STAGES = 4
_GROUP = 16
# Shares of a tile: adding more takes longer than is won.
_MOST_SHARES = 3
# Steps of 64 inputs that leaving and adding sums takes as long as.
_SHARING_STEPS = 12
# What was measured: Qwen3-4B's shapes, and 8B's, of more inputs, in bfloat16.
_LEAST_OUTPUTS = 9728
_FEW_INPUTS = 4096


class Shares(NamedTuple):
    """How tiles are dealt out.

    Attributes:
        num_whole: Tiles that one program has, from the first on; the others are cut.
        num_sharers: Programs among which the others are cut, as many as these at least.
    """

    num_whole: int
    num_sharers: int


def share_out(num_tiles: int, num_steps: int, num_programs: int) -> Shares:
    """Deals tiles of `num_steps` out to programs that run side by side."""
    rest = num_tiles % num_programs
    num_sharers = min(num_programs, rest * _MOST_SHARES)
    # All have as many; or the first wave is not full; or what is cut takes as long as whole tiles.
    if rest in (0, num_tiles) or rest * num_steps > num_sharers * (num_steps - _SHARING_STEPS):
        return Shares(num_tiles, 1)
    return Shares(num_tiles - rest, num_sharers)


def why_not_prompts(spec: FusedLinearSpec, device: torch.device) -> str | None:
    """Returns None if the kernel runs this spec's products on this device, or why not."""
    return _why_not(spec) or why_not_hopper(device)


def _why_not(spec: FusedLinearSpec) -> str | None:
    linear = spec.linear
    if not spec.is_gated or spec.adds_residual or spec.num_outputs < _LEAST_OUTPUTS:
        return "other kernels are as fast"
    if linear.dtype is not torch.bfloat16:
        return f"it was measured in bfloat16, this is {linear.dtype}"
    if linear.in_features % BOX or spec.num_outputs % TILE_OUT:
        return f"inputs must be a multiple of {BOX}, outputs of {TILE_OUT}"
    return None


class Prompts:
    """The launch for any number of rows.

    Attributes:
        least_rows: From how many on it is faster than the library, as found on an H200.
    """

    def __init__(self, spec: FusedLinearSpec, device: torch.device, num_programs: int) -> None:
        """Binds it; `num_programs` is the number of multiprocessors."""
        self.least_rows = 320 if spec.linear.in_features < _FEW_INPUTS else 512
        self._num_column_tiles = spec.num_outputs // TILE_OUT
        self._num_steps = spec.linear.in_features // BOX
        self._num_programs = num_programs
        # Zeros, which the kernel leaves as zeros. Graphs keep the address.
        self._flags = torch.zeros(2 * num_programs, dtype=torch.int32, device=device)
        self._options = {**constexprs(spec), "num_warps": NUM_WARPS, "launch_pdl": True}

    def __call__(
        self,
        x: torch.Tensor,
        weight: PackedWeight,
        residual: torch.Tensor | None,
        out: torch.Tensor,
        /,
    ) -> None:
        """Multiplies and gates rows that are normalised already; cut tiles take memory."""
        assert residual is None, "what is gated is not added"
        num_tiles = triton.cdiv(len(x), TILE_ROWS) * self._num_column_tiles
        shares = share_out(num_tiles, self._num_steps, self._num_programs)
        num_parts = shares.num_sharers if shares.num_whole < num_tiles else 0
        shape = (num_parts, 2, HALF_ROWS, 2 * TILE_OUT)
        parts = torch.empty(shape, dtype=torch.float32, device=x.device)
        kernel: Any = prompts_kernel
        kernel[(self._num_programs,)](
            boxes_of(x, TILE_ROWS),
            boxes_of(weight[0], TILE_OUT),
            boxes_of(out, HALF_ROWS, TILE_OUT),
            parts,
            self._flags,
            len(x),
            *shares,
            **self._options,
        )


def constexprs(spec: FusedLinearSpec) -> dict[str, Any]:
    """Compile-time choices."""
    return {
        "IN": spec.linear.in_features,
        "OUT": spec.num_outputs,
        "STAGES": _STAGES,
        "GROUP": _GROUP,
    }


def compile_case(spec: FusedLinearSpec) -> CompileCase | None:
    """The kernel for any number of rows, if there is one."""
    if _why_not(spec) is not None:
        return None
    linear, name = spec.linear, TRITON_DTYPES[spec.linear.dtype]
    boxes = {"x": (TILE_ROWS, BOX), "weight": (TILE_OUT, BOX), "out": (HALF_ROWS, TILE_OUT)}
    return CompileCase(
        name=f"fused_linear-{name}-{linear.in_features}x{linear.out_features}-prompts",
        kernel=prompts_kernel,
        signature={
            **{key: f"tensordesc<{name}[{r}, {c}],{LAYOUT!r}>" for key, (r, c) in boxes.items()},
            "parts_ptr": "*fp32",
            "flags_ptr": "*i32",
            **dict.fromkeys(("num_rows", "num_whole", "num_sharers"), "i32"),
        },
        constexprs=constexprs(spec),
        num_warps=NUM_WARPS,
        archs=(90,),
    )
