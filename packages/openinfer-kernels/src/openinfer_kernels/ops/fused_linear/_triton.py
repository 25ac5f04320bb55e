"""Back end `triton` of fused_linear: chooses the kernel of a product by GPU family and rows.

| rows | GPU | launched by |
|---|---|---|
| 1 | any | `_triton_one_row` |
| 2 to 64 | Hopper, where `many_rows_cut` has a cut for the row tile | `_gluon_many_rows` |
| 2 to 16 | Hopper and Blackwell, otherwise | `_triton_few_rows` |
| 320 or 512 and more | Hopper, wide gates in bf16 | `_gluon_prompts` |
| any other | any | the parts, one after another (`Composed`) |

`_tuning` has the thresholds and sizes. A step of few rows takes as long as reading the weights. One
row's norm, gate and residual are computed while its weights are read. Several rows are normalised
by a kernel before the product, which costs no time: the product's first weights are loaded
meanwhile.
"""

from collections.abc import Callable
from typing import Any

import torch

from openinfer_kernels.dispatch._choice import Regime
from openinfer_kernels.gpu._compile_case import CompileCase
from openinfer_kernels.gpu._family import num_multiprocessors
from openinfer_kernels.gpu._support import TRITON_DTYPES, why_not_hopper, why_not_triton
from openinfer_kernels.ops.fused_linear import (
    FusedLinear,
    FusedLinearSpec,
    _triton_few_rows,
    _triton_one_row,
    _tuning,
)
from openinfer_kernels.ops.fused_linear._composed import Composed
from openinfer_kernels.ops.linear import LinearSpec, PackedWeight

_Launch = Callable[[torch.Tensor, PackedWeight, torch.Tensor | None, torch.Tensor], None]


def supports(spec: FusedLinearSpec, device: torch.device) -> str | None:
    """Returns None if the kernels run this spec on this device, else the reason."""
    if spec.linear.quantization is not None:
        return f"has no product with {spec.linear.quantization} weights"
    return why_not_triton(spec.linear.dtype, device)


def regimes(spec: FusedLinearSpec, device: torch.device) -> tuple[Regime, ...]:
    """Returns the kernels by number of rows; "composed" stands for the parts, one after another."""
    found, first, kernels = [Regime(rows="1 row", kernel="triton_one_row")], 2, []
    for row_tile in _tuning.ROW_TILES:
        kernel = "composed"
        if _many_rows_cut(spec, row_tile, device) is not None:
            kernel = "gluon_many_rows"
        elif _tuning.few_rows_sizes(spec, row_tile, device) is not None:
            kernel = "triton_few_rows"
        kernels.append((kernel, row_tile))
    for index, (kernel, last) in enumerate(kernels):
        if index + 1 == len(kernels) or kernels[index + 1][0] != kernel:
            found.append(Regime(rows=f"{first} to {last} rows", kernel=kernel))
            first = last + 1
    why_not = _why_not_prompts(spec, device)
    min_rows = _tuning.first_match(_tuning.PROMPTS["hopper"].min_rows, spec)
    prompts = Regime(rows=f"{min_rows} rows and more", kernel="gluon_prompts", why_not=why_not)
    return (*found, prompts, Regime(rows="any other", kernel="composed"))


def plan(spec: FusedLinearSpec, device: torch.device | str) -> FusedLinear:
    """Binds the kernels to a spec and a device."""
    return _ByRows(spec, torch.device(device))


class _ByRows(Composed):
    """Runs the kernel for a step's number of rows, or the parts if there is none."""

    def __init__(self, spec: FusedLinearSpec, device: torch.device) -> None:
        super().__init__(spec, device, "auto", "auto")
        self._num_outputs = spec.num_outputs
        sizes = _tuning.one_row_sizes(spec, device)
        self._one_row = _triton_one_row.OneRowLauncher(spec, sizes, device)
        # Ascending by the upper bound of rows that a launch takes.
        self._up_to_rows: tuple[tuple[int, _Launch], ...] = tuple(_launches(spec, device))
        self._from_rows: tuple[int, _Launch] | None = _prompts_launch(spec, device)

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
        # A program reads the residual where it writes the sum, so both may be the same tensor.
        if residual is not None:
            out = residual
        if out is None:
            out = torch.empty((num_rows, self._num_outputs), dtype=x.dtype, device=x.device)
        if num_rows == 1:
            self._one_row(x, weight, norm_weight, residual, out)
            return out
        if self._norm is not None:
            assert norm_weight is not None, "norm_weight is missing"
            x = self._norm(x, norm_weight)
        assert launch is not None, "products without a launch run as their parts"
        launch(x, weight, residual, out)
        return out

    def _launch_of(self, num_rows: int) -> _Launch | None:
        """Returns the launch for more than one row; None if the parts are as fast."""
        for max_rows, launch in self._up_to_rows:
            if num_rows <= max_rows:
                return launch
        if self._from_rows is not None and num_rows >= self._from_rows[0]:
            return self._from_rows[1]
        return None


def _launches(spec: FusedLinearSpec, device: torch.device) -> list[tuple[int, _Launch]]:
    """Returns the launches for up to 8, 16, 32 and 64 rows that this device has."""
    launches: list[tuple[int, _Launch]] = []
    for row_tile in _tuning.ROW_TILES:
        launch = _many_rows_launch(spec, row_tile, device)
        sizes = _tuning.few_rows_sizes(spec, row_tile, device)
        if launch is None and sizes is not None:
            launch = _triton_few_rows.FewRowsLauncher(spec, row_tile, sizes, device)
        if launch is not None:
            launches.append((row_tile, launch))
    return launches


def _many_rows_launch(spec: FusedLinearSpec, row_tile: int, device: torch.device) -> _Launch | None:
    cut = _many_rows_cut(spec, row_tile, device)
    if cut is None:
        return None
    # Imported on Hopper only: other versions of Triton may not have Gluon's names.
    from openinfer_kernels.ops.fused_linear import _gluon_many_rows

    return _gluon_many_rows.ManyRowsLauncher(spec, row_tile, cut, device)


def _many_rows_cut(
    spec: FusedLinearSpec, row_tile: int, device: torch.device
) -> _tuning.ManyRowsCut | None:
    if why_not_hopper(device) is not None:
        return None
    return _tuning.many_rows_cut(spec, row_tile, num_multiprocessors(device))


def _prompts_launch(spec: FusedLinearSpec, device: torch.device) -> tuple[int, _Launch] | None:
    if _why_not_prompts(spec, device) is not None:
        return None
    from openinfer_kernels.ops.fused_linear import _gluon_prompts

    prompts = _gluon_prompts.PromptsLauncher(spec, device)
    return prompts.min_rows, prompts


def _why_not_prompts(spec: FusedLinearSpec, device: torch.device) -> str | None:
    reason = why_not_hopper(device)
    if reason is not None:
        return reason
    from openinfer_kernels.ops.fused_linear import _gluon_prompts

    return _gluon_prompts.why_not_prompts(spec, device)


# Products of Qwen3-4B and 8B: what is fused with them, inputs, rows of the weight.
_COMPILED: tuple[tuple[dict[str, Any], int, int], ...] = (
    ({"norm_eps": 1e-6}, 2560, 6144),
    ({"adds_residual": True}, 4096, 4096),
    ({"norm_eps": 1e-6, "is_gated": True}, 4096, 24_576),
    ({"adds_residual": True}, 9728, 2560),
    ({}, 2560, 151_936),
)


def compile_cases() -> list[CompileCase]:
    """Returns every kernel for the products above in each dtype."""
    from openinfer_kernels.ops.fused_linear import _gluon_many_rows, _gluon_prompts

    specs = [
        FusedLinearSpec(
            linear=LinearSpec(in_features=num_in, out_features=num_out, dtype=dtype), **parts
        )
        for dtype in TRITON_DTYPES
        for parts, num_in, num_out in _COMPILED
    ]
    row_tiles = _tuning.ROW_TILES
    cases = [
        *(_triton_one_row.compile_case(spec) for spec in specs),
        *(_triton_few_rows.compile_case(spec, tile) for tile in row_tiles for spec in specs),
        *(_gluon_many_rows.compile_case(spec, tile) for tile in row_tiles for spec in specs),
        *(_gluon_prompts.compile_case(spec) for spec in specs),
    ]
    return [case for case in cases if case is not None]
