"""Launches of the gated product of prompts on Hopper (`_gluon_prompts_kernels`)."""

from typing import Any, NamedTuple

import torch
import triton

from openinfer_kernels.gpu._compile_case import CompileCase
from openinfer_kernels.gpu._family import num_multiprocessors
from openinfer_kernels.gpu._support import TRITON_DTYPES, why_not_hopper
from openinfer_kernels.ops.fused_linear import FusedLinearSpec
from openinfer_kernels.ops.fused_linear._gluon_boxes import LAYOUT, boxes_of
from openinfer_kernels.ops.fused_linear._gluon_prompts_kernels import (
    BLOCK_M,
    BLOCK_N,
    HALF_M,
    NUM_WARPS,
    prompts_kernel,
)
from openinfer_kernels.ops.fused_linear._tuning import BOX, PROMPTS, first_match
from openinfer_kernels.ops.linear import PackedWeight

_SIZES = PROMPTS["hopper"]


class Shares(NamedTuple):
    """How tiles are distributed over programs.

    Attributes:
        num_whole: Leading tiles that one program computes alone; the others are cut.
        num_sharers: Programs that share the cut tiles, at least one for each.
    """

    num_whole: int
    num_sharers: int


def share_out(num_tiles: int, num_steps: int, num_programs: int) -> Shares:
    """Distributes tiles of `num_steps` steps over programs that run at the same time.

    Tiles are cut only if the last wave of whole tiles would leave programs idle, and if a share of
    a cut tile, with adding the partial sums, takes less time than a whole tile.
    """
    rest = num_tiles % num_programs
    num_sharers = min(num_programs, rest * _SIZES.max_shares)
    is_even, is_one_wave = rest == 0, rest == num_tiles
    if is_even or is_one_wave:
        return Shares(num_tiles, 1)
    if rest * num_steps > num_sharers * (num_steps - _SIZES.sharing_steps):
        return Shares(num_tiles, 1)
    return Shares(num_tiles - rest, num_sharers)


def why_not_prompts(spec: FusedLinearSpec, device: torch.device) -> str | None:
    """Returns None if the kernel is for this product on this device, else the reason."""
    return _why_not(spec) or why_not_hopper(device)


def _why_not(spec: FusedLinearSpec) -> str | None:
    linear = spec.linear
    if not spec.is_gated or spec.adds_residual or spec.num_outputs < _SIZES.min_outputs:
        return "other kernels are as fast"
    if linear.dtype is not torch.bfloat16:
        return f"it was measured in bfloat16, this is {linear.dtype}"
    if linear.in_features % BOX or spec.num_outputs % BLOCK_N:
        return f"inputs must be a multiple of {BOX}, outputs of {BLOCK_N}"
    return None


class PromptsLauncher:
    """Launches `prompts_kernel` for any number of rows that are normalised already.

    Attributes:
        min_rows: Rows from which on it is faster than cuBLAS.
    """

    def __init__(self, spec: FusedLinearSpec, device: torch.device) -> None:
        """Reads the number of multiprocessors and allocates the flags of partial sums."""
        self.min_rows = first_match(_SIZES.min_rows, spec)
        self._num_column_tiles = spec.num_outputs // BLOCK_N
        self._num_steps = spec.linear.in_features // BOX
        self._num_programs = num_multiprocessors(device)
        # Whether a half tile's partial sums are there. The kernel resets them to 0. Allocated once,
        # because captured graphs keep the address.
        self._flags = torch.zeros(2 * self._num_programs, dtype=torch.int32, device=device)
        self._options = {**_constexprs(spec), "num_warps": NUM_WARPS, "launch_pdl": True}

    def __call__(
        self,
        x: torch.Tensor,
        weight: PackedWeight,
        residual: torch.Tensor | None,
        out: torch.Tensor,
        /,
    ) -> None:
        """Writes `out`. Allocates partial sums where tiles are cut."""
        assert residual is None, "the kernel adds no residual"
        num_tiles = triton.cdiv(len(x), BLOCK_M) * self._num_column_tiles
        shares = share_out(num_tiles, self._num_steps, self._num_programs)
        num_parts = shares.num_sharers if shares.num_whole < num_tiles else 0
        shape = (num_parts, 2, HALF_M, 2 * BLOCK_N)
        parts = torch.empty(shape, dtype=torch.float32, device=x.device)
        kernel: Any = prompts_kernel
        kernel[(self._num_programs,)](
            boxes_of(x, BLOCK_M),
            boxes_of(weight[0], BLOCK_N),
            boxes_of(out, HALF_M, BLOCK_N),
            parts,
            self._flags,
            len(x),
            *shares,
            **self._options,
        )


def _constexprs(spec: FusedLinearSpec) -> dict[str, int]:
    return {
        "K": spec.linear.in_features,
        "N": spec.num_outputs,
        "NUM_STAGES": _SIZES.num_stages,
        "GROUP_M": _SIZES.group_m,
    }


def compile_case(spec: FusedLinearSpec) -> CompileCase | None:
    """Returns the kernel of a product, or None if there is none."""
    if _why_not(spec) is not None:
        return None
    linear, name = spec.linear, TRITON_DTYPES[spec.linear.dtype]
    boxes = {"x": (BLOCK_M, BOX), "weight": (BLOCK_N, BOX), "out": (HALF_M, BLOCK_N)}
    return CompileCase(
        name=f"fused_linear-{name}-{linear.in_features}x{linear.out_features}-prompts",
        kernel=prompts_kernel,
        signature={
            **{key: f"tensordesc<{name}[{r}, {c}],{LAYOUT!r}>" for key, (r, c) in boxes.items()},
            "parts_ptr": "*fp32",
            "flags_ptr": "*i32",
            **dict.fromkeys(("num_rows", "num_whole", "num_sharers"), "i32"),
        },
        constexprs=_constexprs(spec),
        num_warps=NUM_WARPS,
        archs=(90,),
    )
