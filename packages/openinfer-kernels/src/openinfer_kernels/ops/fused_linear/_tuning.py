"""Tile sizes and thresholds of the GPU kernels of fused_linear, by GPU family and shape.

All numbers were measured on one H200 in bf16, in whole steps of Qwen3-4B and Qwen3-8B. A tile that
is fastest in a chain of products alone need not be in a step, where attention runs between them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import torch
import triton

from openinfer_kernels.gpu._family import gpu_family, tuned_for
from openinfer_kernels.gpu._support import gpu_arch
from openinfer_kernels.ops.fused_linear import FusedLinearSpec

ROW_TILES = (8, 16, 32, 64)
"""Rows that kernels of few and of many rows are compiled for; a step takes the next larger one.

With more rows cuBLAS is as fast, except for gates of prompts."""

H200_MULTIPROCESSORS = 132
"""Multiprocessors of an H200, and of an H100 with SXM. The compile gate compiles for them."""

BOX = 64
"""Columns of a box that TMA copies for the Gluon kernels: 128 bytes of 16-bit numbers."""

MANY_ROWS_BLOCK_N = 64
"""Outputs of a program of `many_rows_kernel`: the rows of one warpgroup product."""

WEIGHT_BOXES = 2
"""Boxes of weights in a stage of `many_rows_kernel`: two neighbours, or a gate's and its up's."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule(Generic[T]):
    """Kernel sizes and the products that use them. The first rule that matches a product applies.

    Attributes:
        sizes: The sizes of the kernel.
        fusion: "gate" for a gated product, "norm" for one with a norm and no gate; None for any.
        min_in: Lower bound of the inputs.
        max_in: Upper bound of the inputs; None for no bound.
        min_out: Lower bound of the outputs.
        max_in_per_out: Upper bound of inputs divided by outputs; None for no bound.
        in_multiple: The inputs must be a multiple of this.
    """

    sizes: T
    fusion: Literal["gate", "norm"] | None = None
    min_in: int = 0
    max_in: int | None = None
    min_out: int = 0
    max_in_per_out: int | None = None
    in_multiple: int = 1

    def matches(self, spec: FusedLinearSpec) -> bool:
        """Returns whether a product takes these sizes."""
        num_in, num_out = spec.linear.in_features, spec.num_outputs
        return (
            self.fusion in (None, _fusion(spec))
            and num_in >= self.min_in
            and (self.max_in is None or num_in <= self.max_in)
            and num_out >= self.min_out
            and (self.max_in_per_out is None or num_in <= self.max_in_per_out * num_out)
            and num_in % self.in_multiple == 0
        )


def _fusion(spec: FusedLinearSpec) -> Literal["gate", "norm"] | None:
    if spec.is_gated:
        return "gate"
    return "norm" if spec.norm_eps is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class OneRowSizes:
    """How the kernel for one row cuts up a product.

    Attributes:
        block_n: Outputs of a program.
        block_k: Inputs multiplied at a time.
        depth: Tiles of weights that are loaded ahead.
        num_warps: Warps of a program.
        is_late: Whether the next kernel may start only when the products are done, not at once. It
            is for attention's output: the product after it is the widest, and its programs would
            take memory bandwidth and multiprocessors from this one while they wait.
    """

    block_n: int
    block_k: int
    depth: int
    num_warps: int
    is_late: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FewRowsSizes:
    """How the Triton kernel for a few rows cuts up a product.

    Attributes:
        weight_rows: Rows of the weight that a tile has; gates and ups count separately.
        block_k: Inputs multiplied at a time.
        num_stages: Depth of the software pipeline; one copy less is in flight.
        num_warps: Warps of a program. Each multiplies its share of the `block_k` inputs.
        is_persistent: Whether there is a program for each multiprocessor, not for each tile.
    """

    weight_rows: int
    block_k: int
    num_stages: int
    num_warps: int
    is_persistent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ManyRowsSizes:
    """When and how the Gluon kernel for many rows cuts up a product.

    Attributes:
        min_gate_rows: Smallest row tile at which it takes gated products.
        long_sum: It takes the smallest row tile only if a residual is added and there are more
            inputs than this; otherwise the Triton kernel is faster.
        min_split_inputs: Lower bound of the inputs of a split; with fewer, adding the splits costs
            more than splitting gains.
        min_programs: Lower bound of programs; with fewer, other kernels are as fast.
        max_registers: Upper bound of registers per thread. A program takes half of a
            multiprocessor's registers, so that the next kernel has room for one.
        shared_bytes: Shared memory that a program may take.
        spare_bytes: Shared memory besides the ring: barriers, and what the system reserves.
        result_bytes: Shared memory through which results go where inputs are not split.
    """

    min_gate_rows: int
    long_sum: int
    min_split_inputs: int
    min_programs: int
    max_registers: int
    shared_bytes: int
    spare_bytes: int
    result_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptsSizes:
    """When and how the Gluon kernel for gates of prompts cuts up a product.

    Attributes:
        min_outputs: Outputs at least: Qwen3-4B's, the smallest that were measured.
        min_rows: Rows from which on it is faster than cuBLAS.
        num_stages: Depth of the ring of copies.
        group_m: Tiles of rows that are taken together for each tile of outputs, so that their
            operands stay in the L2 cache.
        max_shares: Upper bound of programs that share a tile; with more, adding their sums costs
            more than sharing gains.
        sharing_steps: Time for storing and adding partial sums, in steps of 64 inputs.
    """

    min_outputs: int
    min_rows: tuple[Rule[int], ...]
    num_stages: int
    group_m: int
    max_shares: int
    sharing_steps: int


ONE_ROW: Mapping[str, tuple[Rule[OneRowSizes], ...]] = {
    "default": (
        Rule(
            fusion="gate",
            min_in=4096,
            sizes=OneRowSizes(block_n=2, block_k=512, depth=5, num_warps=2),
        ),
        Rule(fusion="gate", sizes=OneRowSizes(block_n=2, block_k=512, depth=3, num_warps=2)),
        Rule(
            fusion="norm",
            min_in=4096,
            sizes=OneRowSizes(block_n=4, block_k=1024, depth=1, num_warps=2),
        ),
        Rule(fusion="norm", sizes=OneRowSizes(block_n=4, block_k=512, depth=3, num_warps=2)),
        # Logits.
        Rule(min_out=32_769, sizes=OneRowSizes(block_n=2, block_k=1024, depth=1, num_warps=2)),
        # Attention's output.
        Rule(
            max_in_per_out=2,
            min_out=4096,
            sizes=OneRowSizes(block_n=4, block_k=1024, depth=3, num_warps=2, is_late=True),
        ),
        Rule(
            max_in_per_out=2,
            sizes=OneRowSizes(block_n=4, block_k=1024, depth=3, num_warps=4, is_late=True),
        ),
        # The output of the MLP.
        Rule(in_multiple=2048, sizes=OneRowSizes(block_n=4, block_k=2048, depth=3, num_warps=4)),
        Rule(sizes=OneRowSizes(block_n=4, block_k=1024, depth=4, num_warps=4)),
    ),
}

_FEW_ROWS: Mapping[int, tuple[Rule[FewRowsSizes], ...]] = {
    8: (
        Rule(
            fusion="gate",
            sizes=FewRowsSizes(
                weight_rows=32, block_k=512, num_stages=4, num_warps=8, is_persistent=True
            ),
        ),
        Rule(
            fusion="norm",
            sizes=FewRowsSizes(weight_rows=16, block_k=256, num_stages=6, num_warps=4),
        ),
        Rule(
            max_in=4096,
            sizes=FewRowsSizes(weight_rows=16, block_k=1024, num_stages=3, num_warps=8),
        ),
        Rule(sizes=FewRowsSizes(weight_rows=32, block_k=256, num_stages=5, num_warps=8)),
    ),
    16: (
        Rule(
            fusion="gate",
            sizes=FewRowsSizes(weight_rows=32, block_k=512, num_stages=3, num_warps=8),
        ),
        Rule(
            fusion="norm",
            sizes=FewRowsSizes(weight_rows=32, block_k=512, num_stages=3, num_warps=4),
        ),
        Rule(
            max_in=4096,
            sizes=FewRowsSizes(weight_rows=32, block_k=256, num_stages=5, num_warps=4),
        ),
        Rule(sizes=FewRowsSizes(weight_rows=16, block_k=256, num_stages=6, num_warps=4)),
    ),
}
FEW_ROWS: Mapping[str, Mapping[int, tuple[Rule[FewRowsSizes], ...]]] = {
    "hopper": _FEW_ROWS,
    "blackwell": _FEW_ROWS,
}
"""By family and row tile. Other families lack overlapping launches, or the 227 KiB of shared memory
that the ring of copies takes."""

MANY_ROWS: Mapping[str, ManyRowsSizes] = {
    "hopper": ManyRowsSizes(
        min_gate_rows=32,
        long_sum=4096,
        min_split_inputs=2048,
        min_programs=64,
        max_registers=128,
        shared_bytes=227 * 1024,
        spare_bytes=2048,
        result_bytes=8192,
    ),
}

PROMPTS: Mapping[str, PromptsSizes] = {
    "hopper": PromptsSizes(
        min_outputs=9728,
        min_rows=(Rule(min_in=4096, sizes=512), Rule(sizes=320)),
        num_stages=4,
        group_m=16,
        max_shares=3,
        sharing_steps=12,
    ),
}


def first_match(rules: tuple[Rule[T], ...], spec: FusedLinearSpec) -> T:
    """Returns the sizes of the first rule that matches a product."""
    return next(rule.sizes for rule in rules if rule.matches(spec))


def one_row_sizes(spec: FusedLinearSpec, device: torch.device) -> OneRowSizes:
    """Returns the sizes of the kernel for one row."""
    return first_match(tuned_for(ONE_ROW, device), spec)


def few_rows_sizes(
    spec: FusedLinearSpec, row_tile: int, device: torch.device
) -> FewRowsSizes | None:
    """Returns the sizes of the Triton kernel for up to `row_tile` rows; None if it has none.

    Triton's interpreter, on a CPU, takes the sizes of Hopper.
    """
    family = "hopper" if gpu_arch(device) is None else gpu_family(device)
    rules = FEW_ROWS.get(family or "", {}).get(row_tile)
    return first_match(rules, spec) if rules and _is_fused_in_16_bits(spec) else None


def _is_fused_in_16_bits(spec: FusedLinearSpec) -> bool:
    """Returns whether a kernel of several rows can be faster than cuBLAS.

    cuBLAS is as fast at a product with nothing fused, such as logits. For float32 the kernels are
    not used, because tensor cores would round the inputs.
    """
    is_fused = spec.adds_residual or spec.norm_eps is not None
    return spec.linear.dtype.itemsize == 2 and is_fused


@dataclass(frozen=True, slots=True, kw_only=True)
class ManyRowsCut:
    """How the Gluon kernel for many rows cuts up one product.

    Attributes:
        num_splits: Programs that share the inputs of a tile (split-K).
        num_stages: Depth of the ring of copies.
    """

    num_splits: int
    num_stages: int


def many_rows_cut(
    spec: FusedLinearSpec, row_tile: int, num_multiprocessors: int
) -> ManyRowsCut | None:
    """Returns how the Gluon kernel cuts up a product; None where other kernels are as fast.

    A deep ring is worth more than a second program on a multiprocessor: weights are loaded into it
    while the previous kernel ends. Two programs share a multiprocessor only if there are more tiles
    than multiprocessors.

    Args:
        spec: The product.
        row_tile: Rows of the tile, one of `ROW_TILES`.
        num_multiprocessors: Multiprocessors of the GPU.
    """
    sizes = MANY_ROWS["hopper"]
    num_in = spec.linear.in_features
    if not _is_fused_in_16_bits(spec) or num_in % 8:
        return None
    if spec.is_gated and row_tile < sizes.min_gate_rows:
        return None
    if row_tile == ROW_TILES[0] and not (spec.adds_residual and num_in > sizes.long_sum):
        return None
    num_tiles = triton.cdiv(spec.num_outputs, MANY_ROWS_BLOCK_N)
    num_splits = max(1, min(num_multiprocessors // num_tiles, num_in // sizes.min_split_inputs))
    num_splits = 1 if spec.is_gated else num_splits
    if num_tiles * num_splits < sizes.min_programs:
        return None
    programs_each = 1 if num_tiles * num_splits <= num_multiprocessors else 2
    x_boxes = 1 if spec.is_gated else WEIGHT_BOXES
    stage_bytes = (WEIGHT_BOXES * MANY_ROWS_BLOCK_N + x_boxes * row_tile) * BOX * 2
    spare_bytes = sizes.spare_bytes + (sizes.result_bytes if num_splits == 1 else 0)
    num_stages = (sizes.shared_bytes // programs_each - spare_bytes) // stage_bytes
    num_steps = triton.cdiv(num_in, x_boxes * BOX) // num_splits
    return ManyRowsCut(num_splits=num_splits, num_stages=min(num_stages, num_steps))
