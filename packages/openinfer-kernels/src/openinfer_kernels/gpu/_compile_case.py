"""Cases of the compile gate."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileCase:
    """One kernel with one set of compile-time choices, as a launch would use it.

    Attributes:
        name: Name of the case, unique among all, for example "rms_norm-bf16-4096".
        kernel: The `triton.jit` or `gluon.jit` function.
        signature: Run-time argument name to Triton type ("*bf16", "i64", "fp32"), or None if
            launches pass None, which Triton compiles as a constant.
        constexprs: Compile-time argument name to value.
        num_warps: Warps of a program.
        num_stages: Depth of the software pipeline.
        max_registers: Upper bound on a thread's registers; None leaves it to the compiler.
        has_pdl: Whether the kernel has a compile-time argument PDL, true from sm_90 on.
        archs: Compute capabilities that the kernel is for, `compile_gate.EVERY_SHAPE` among
            them; None for all.
    """

    name: str
    kernel: Any
    signature: Mapping[str, str | None]
    constexprs: Mapping[str, Any] = field(default_factory=dict)
    num_warps: int = 4
    num_stages: int = 3
    max_registers: int | None = None
    has_pdl: bool = False
    archs: tuple[int, ...] | None = None
