"""fused_linear in Triton for steps of up to 16 rows, on Hopper of up to 64; more are composed.

Only gate and up of long prompts are a kernel again on Hopper, see `_gluon_prompts`. A step of few
rows is the reading of weights. One row's norm, gate and residual are done where the weight goes by;
more rows are normalised by a kernel in between, which takes no time while the next kernel's first
weights are on their way.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import triton

from openinfer_kernels.gpu._support import (
    TRITON_DTYPES,
    CompileCase,
    gpu_arch,
    launches_dependents,
    why_not_hopper,
    why_not_triton,
)
from openinfer_kernels.ops.fused_linear import FusedLinear, FusedLinearSpec
from openinfer_kernels.ops.fused_linear._composed import Composed
from openinfer_kernels.ops.fused_linear._triton_few_rows_kernels import few_rows_kernel, gemv_kernel
from openinfer_kernels.ops.linear import LinearSpec, PackedWeight

if TYPE_CHECKING:
    from openinfer_kernels.ops.fused_linear import _gluon_prompts

# Of more rows the library is as fast, but on Hopper `_gluon_many_rows` and
# `_gluon_prompts` (one H200, Qwen3-4B's products).
_ROW_TILES = (8, 16)
_RING_ARCHS = (90, 100)  # overlapping kernels, and 227 KiB of shared memory for a ring
_MANY_OUTPUTS = 32_768
_FEW_INPUTS = 4096


class Tile(NamedTuple):
    """Outputs and inputs multiplied at a time, tiles on their way, and warps of a program.

    Attributes:
        num_out: Outputs.
        num_in: Inputs.
        depth: Tiles on their way.
        num_warps: Warps.
        is_late: Whether the next kernel starts when products are done, not when they begin.
    """

    num_out: int
    num_in: int
    depth: int
    num_warps: int
    is_late: bool = False


class Ring(NamedTuple):
    """Rows and columns of the weight that are multiplied at a time, copies on their way, and warps.

    Attributes:
        num_stored: Rows of the weight, gate and up counted apart.
        num_in: Columns.
        num_stages: Depth of the software pipeline; one copy less is on its way.
        num_warps: Warps of a program, each of which multiplies its part of the columns.
        is_persistent: Whether there is a program for each multiprocessor, not for each tile.
    """

    num_stored: int
    num_in: int
    num_stages: int
    num_warps: int
    is_persistent: bool = False


def supports(spec: FusedLinearSpec, device: torch.device) -> str | None:
    """Weights in a float dtype."""
    if spec.linear.quantization is not None:
        return f"has no product with {spec.linear.quantization} weights"
    return why_not_triton(spec.linear.dtype, device)


def choose_tile(spec: FusedLinearSpec) -> Tile:
    """The tile for one row, as found on an H200 in whole steps of Qwen3-4B and 8B.

    Tiles that are best in a chain of products alone are not: attention stands between them.
    """
    num_in, num_out = spec.linear.in_features, spec.num_outputs
    if spec.is_gated:
        return Tile(2, 512, 3 if num_in < _FEW_INPUTS else 5, 2)
    if spec.norm_eps is not None:
        return Tile(4, 512, 3, 2) if num_in < _FEW_INPUTS else Tile(4, 1024, 1, 2)
    if num_out > _MANY_OUTPUTS:
        return Tile(2, 1024, 1, 2)
    if num_in <= 2 * num_out:
        # Attention's output. Behind it stands the widest product, whose programs would take the
        # memory's bandwidth and the multiprocessors' room from this one while it waits.
        return Tile(4, 1024, 3, 2 if num_out >= 4096 else 4, is_late=True)
    return Tile(4, 2048, 3, 4) if num_in % 2048 == 0 else Tile(4, 1024, 4, 4)


def choose_ring(spec: FusedLinearSpec, row_tile: int) -> Ring | None:
    """The ring for up to `row_tile` rows, as found on an H200; None where the library is as fast.

    That is a product with nothing around it, such as a head, and float32, which the tensor cores
    would round.
    """
    if spec.linear.dtype.itemsize != 2 or not (spec.adds_residual or spec.norm_eps is not None):
        return None
    few = row_tile == _ROW_TILES[0]
    if spec.is_gated:
        return Ring(32, 512, 4, 8, is_persistent=True) if few else Ring(32, 512, 3, 8)
    if spec.norm_eps is not None:
        return Ring(16, 256, 6, 4) if few else Ring(32, 512, 3, 4)
    if spec.linear.in_features <= _FEW_INPUTS:
        return Ring(16, 1024, 3, 8) if few else Ring(32, 256, 5, 4)
    return Ring(32, 256, 5, 8) if few else Ring(16, 256, 6, 4)


def plan(spec: FusedLinearSpec, device: torch.device | str) -> FusedLinear:
    """Binds fused_linear."""
    return _Fused(spec, torch.device(device))


class _Fused(Composed):
    """A kernel for one row, one for a few, the parts in turn for more."""

    def __init__(self, spec: FusedLinearSpec, device: torch.device) -> None:
        super().__init__(spec, device, "auto", "auto")
        self._num_outputs = spec.num_outputs
        self._eps = spec.norm_eps or 0.0
        has_pdl = launches_dependents(device)
        launch = {"PDL": has_pdl, **({"launch_pdl": True} if has_pdl else {})}
        tile = choose_tile(spec)
        self._grid = (triton.cdiv(spec.num_outputs, tile.num_out),)
        self._options = {**constexprs(spec, tile), "num_warps": tile.num_warps, **launch}
        # By the most rows that each takes, in ascending order.
        self._launches: dict[int, _Launch] = {}
        for row_tile in _ROW_TILES if gpu_arch(device) in (None, *_RING_ARCHS) else ():
            ring = choose_ring(spec, row_tile)
            if ring is None:
                continue
            options = few_rows_constexprs(spec, ring, row_tile)
            grid = _few_rows_grid(spec, ring, options["TILE_OUT"], device)
            options |= {"num_warps": ring.num_warps, **launch}
            self._launches[row_tile] = partial(_launch_few_rows, grid, options)
        self._prompts = None
        if why_not_hopper(device) is None:
            self._launches |= _many_rows_launches(spec, device)
            self._prompts = _plan_prompts(spec, device)

    def __call__(
        self,
        x: torch.Tensor,
        weight: PackedWeight,
        /,
        norm_weight: torch.Tensor | None = None,
        residual: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        num_rows = x.shape[0]
        launch = self._launch_of(num_rows)
        if num_rows == 0 or (num_rows > 1 and launch is None):
            return super().__call__(x, weight, norm_weight, residual, out)
        # A program reads the residual where it writes the sum, so one may lie over the other.
        if residual is not None:
            out = residual
        if out is None:
            out = torch.empty((num_rows, self._num_outputs), dtype=x.dtype, device=x.device)
        if num_rows == 1:
            kernel: Any = gemv_kernel
            inputs = x, weight[0], norm_weight, residual, out, self._eps
            kernel[self._grid](*inputs, **self._options)
            return out
        if self._norm is not None:
            assert norm_weight is not None, "the spec normalises"
            x = self._norm(x, norm_weight)
        assert launch is not None, "more rows are composed"
        launch(x, weight, residual, out)
        return out

    def _launch_of(self, num_rows: int) -> "_Launch | None":
        for row_tile, launch in self._launches.items():
            if num_rows <= row_tile:
                return launch
        prompts = self._prompts
        return prompts if prompts is not None and num_rows >= prompts.least_rows else None


_Launch = Callable[[torch.Tensor, PackedWeight, torch.Tensor | None, torch.Tensor], None]


def _launch_few_rows(
    grid: tuple[int],
    options: dict[str, Any],
    x: torch.Tensor,
    weight: PackedWeight,
    residual: torch.Tensor | None,
    out: torch.Tensor,
    /,
) -> None:
    kernel: Any = few_rows_kernel
    kernel[grid](x, weight[0], residual, out, len(x), **options)


def _many_rows_launches(spec: FusedLinearSpec, device: torch.device) -> dict[int, _Launch]:
    # Imported on Hopper only: other versions of Triton may not have Gluon's names.
    from openinfer_kernels.ops.fused_linear import _gluon_many_rows

    if _gluon_many_rows.why_not_many_rows(spec, device) is not None:
        return {}
    cuts = {tile: _gluon_many_rows.choose_cut(spec, tile) for tile in _gluon_many_rows.ROW_TILES}
    return {
        tile: _gluon_many_rows.ManyRows(spec, tile, cut, device)
        for tile, cut in cuts.items()
        if cut is not None
    }


def _plan_prompts(spec: FusedLinearSpec, device: torch.device) -> "_gluon_prompts.Prompts | None":
    from openinfer_kernels.ops.fused_linear import _gluon_prompts

    if _gluon_prompts.why_not_prompts(spec, device) is not None:
        return None
    return _gluon_prompts.Prompts(spec, device, _num_multiprocessors(device))


def _few_rows_grid(
    spec: FusedLinearSpec, ring: Ring, tile_out: int, device: torch.device
) -> tuple[int]:
    num_tiles = triton.cdiv(spec.num_outputs, tile_out)
    return (min(num_tiles, _num_multiprocessors(device)) if ring.is_persistent else num_tiles,)


def _num_multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return 2  # nothing depends on it where nothing runs side by side
    return torch.cuda.get_device_properties(device).multi_processor_count


def constexprs(spec: FusedLinearSpec, tile: Tile) -> dict[str, Any]:
    """Compile-time choices for one row, but PDL."""
    return {
        "IN": spec.linear.in_features,
        "OUT": spec.num_outputs,
        "TILE_OUT": tile.num_out,
        "TILE_IN": tile.num_in,
        "DEPTH": tile.depth,
        "NORM": spec.norm_eps is not None,
        "GATED": spec.is_gated,
        "ADD": spec.adds_residual,
        "LATE": tile.is_late,
    }


def few_rows_constexprs(spec: FusedLinearSpec, ring: Ring, row_tile: int) -> dict[str, Any]:
    """Compile-time choices for a few rows, but PDL."""
    return {
        "IN": spec.linear.in_features,
        "OUT": spec.num_outputs,
        "ROWS": row_tile,
        "TILE_OUT": ring.num_stored // (2 if spec.is_gated else 1),
        "TILE_IN": ring.num_in,
        "NUM_PARTS": ring.num_warps,
        "NUM_STAGES": ring.num_stages,
        "GATED": spec.is_gated,
        "ADD": spec.adds_residual,
    }


# Products of Qwen3-4B and 8B: what is fused with them, inputs, stored outputs.
_COMPILED: tuple[tuple[dict[str, Any], int, int], ...] = (
    ({"norm_eps": 1e-6}, 2560, 6144),
    ({"adds_residual": True}, 4096, 4096),
    ({"norm_eps": 1e-6, "is_gated": True}, 4096, 24_576),
    ({"adds_residual": True}, 9728, 2560),
    ({}, 2560, 151_936),
)


def compile_cases() -> list[CompileCase]:
    """The products above, in each dtype: one row, then a few, then many."""
    from openinfer_kernels.ops.fused_linear import _gluon_many_rows, _gluon_prompts

    specs = [
        FusedLinearSpec(
            linear=LinearSpec(in_features=num_in, out_features=num_out, dtype=dtype), **parts
        )
        for dtype in TRITON_DTYPES
        for parts, num_in, num_out in _COMPILED
    ]
    few = [_few_rows_case(spec, row_tile) for row_tile in _ROW_TILES for spec in specs]
    tiles = _gluon_many_rows.ROW_TILES
    many = [_gluon_many_rows.compile_case(spec, row_tile) for row_tile in tiles for spec in specs]
    prompts = [_gluon_prompts.compile_case(spec) for spec in specs]
    more = [case for case in few + many + prompts if case]
    return [*(_one_row_case(spec) for spec in specs), *more]


def _one_row_case(spec: FusedLinearSpec) -> CompileCase:
    tile, name = choose_tile(spec), TRITON_DTYPES[spec.linear.dtype]
    data = f"*{name}"
    return CompileCase(
        name=f"fused_linear-{name}-{spec.linear.in_features}x{spec.linear.out_features}",
        kernel=gemv_kernel,
        signature={
            **dict.fromkeys(("x_ptr", "weight_ptr", "out_ptr"), data),
            "norm_ptr": None if spec.norm_eps is None else data,
            "residual_ptr": data if spec.adds_residual else None,
            "eps": "fp32",
        },
        constexprs=constexprs(spec, tile),
        num_warps=tile.num_warps,
        has_pdl=True,
    )


def _few_rows_case(spec: FusedLinearSpec, row_tile: int) -> CompileCase | None:
    ring, name = choose_ring(spec, row_tile), TRITON_DTYPES[spec.linear.dtype]
    if ring is None:
        return None
    num_in, num_out = spec.linear.in_features, spec.linear.out_features
    data = f"*{name}"
    return CompileCase(
        name=f"fused_linear-{name}-{num_in}x{num_out}-{row_tile}-rows",
        kernel=few_rows_kernel,
        signature={
            **dict.fromkeys(("x_ptr", "weight_ptr", "out_ptr"), data),
            "residual_ptr": data if spec.adds_residual else None,
            "num_rows": "i32",
        },
        constexprs=few_rows_constexprs(spec, ring, row_tile),
        num_warps=ring.num_warps,
        num_stages=ring.num_stages,
        has_pdl=True,
        archs=_RING_ARCHS,
    )
