"""Operations of a transformer, each with a definition in torch and back ends for CPUs and GPUs.

An op is a folder of `ops`. `plan_<op>(spec, device, backend="auto")` chooses a back end when a
model is built and returns a callable. A test compares every back end with the op's `_reference.py`.
"""

from openinfer_kernels.compile._ahead import CompileAhead
from openinfer_kernels.compile._count import num_compiled_kernels
from openinfer_kernels.compile._folder import kernel_folder
from openinfer_kernels.compile._kernel_report import KernelReport
from openinfer_kernels.dispatch import KERNELS, OpReport, Regime, backend_module, describe
from openinfer_kernels.errors import BackendUnavailable, KernelError
from openinfer_kernels.gpu._compile_case import CompileCase
from openinfer_kernels.gpu._gpu import Gpu, gpu_of
from openinfer_kernels.memory._huge_pages import empty_weight, zeros_in_huge_pages
from openinfer_kernels.memory._upload import upload
from openinfer_kernels.ops.advance_rows import (
    AdvanceRows,
    AdvanceRowsSpec,
    RowTables,
    StepRows,
    StepTensors,
    plan_advance_rows,
)
from openinfer_kernels.ops.fused_attention import (
    MAX_PREFIX_GROUPS,
    AttentionStep,
    FusedAttention,
    FusedAttentionSpec,
    PrefixGroup,
    PrefixTable,
    SharedPrefixes,
    plan_fused_attention,
)
from openinfer_kernels.ops.fused_linear import FusedLinear, FusedLinearSpec, plan_fused_linear
from openinfer_kernels.ops.linear import (
    Linear,
    LinearSpec,
    PackedWeight,
    Quantization,
    dequantize_weight,
    plan_linear,
    quantize_weight,
)
from openinfer_kernels.ops.paged_attention import (
    PagedAttention,
    PagedAttentionSpec,
    StepSequences,
    plan_paged_attention,
)
from openinfer_kernels.ops.rms_norm import (
    RMSNorm,
    RMSNormSpec,
    plan_rms_norm,
)
from openinfer_kernels.ops.rope import Rope, RopeSpec, plan_rope
from openinfer_kernels.ops.sample import (
    IN_PROMPT,
    PADDING,
    CapturableSample,
    Column,
    Drawn,
    Failure,
    Needs,
    Sample,
    SampleRows,
    SampleSpec,
    SampleState,
    plan_sample,
)
from openinfer_kernels.ops.score_tokens import (
    ScoreTokens,
    ScoreTokensSpec,
    plan_score_tokens,
)
from openinfer_kernels.ops.silu_and_mul import SiluAndMul, SiluAndMulSpec, plan_silu_and_mul
from openinfer_kernels.ops.store_kv import StoreKV, StoreKVSpec, plan_store_kv

__all__ = [
    # Normalisation
    "RMSNorm",
    "RMSNormSpec",
    "plan_rms_norm",
    # Projections and the MLP
    "Linear",
    "LinearSpec",
    "PackedWeight",
    "Quantization",
    "SiluAndMul",
    "SiluAndMulSpec",
    "dequantize_weight",
    "plan_linear",
    "plan_silu_and_mul",
    "quantize_weight",
    # Fused ops
    "AttentionStep",
    "FusedAttention",
    "FusedAttentionSpec",
    "FusedLinear",
    "FusedLinearSpec",
    "MAX_PREFIX_GROUPS",
    "PrefixGroup",
    "PrefixTable",
    "SharedPrefixes",
    "plan_fused_attention",
    "plan_fused_linear",
    # Attention
    "PagedAttention",
    "PagedAttentionSpec",
    "StepSequences",
    "Rope",
    "RopeSpec",
    "StoreKV",
    "StoreKVSpec",
    "plan_paged_attention",
    "plan_rope",
    "plan_store_kv",
    # The rows of a step
    "AdvanceRows",
    "AdvanceRowsSpec",
    "RowTables",
    "StepRows",
    "StepTensors",
    "plan_advance_rows",
    # Sampling
    "Column",
    "Drawn",
    "Failure",
    "IN_PROMPT",
    "Needs",
    "PADDING",
    "CapturableSample",
    "Sample",
    "SampleRows",
    "SampleSpec",
    "SampleState",
    "ScoreTokens",
    "ScoreTokensSpec",
    "plan_sample",
    "plan_score_tokens",
    # Copies to a device
    "upload",
    # Host memory in huge pages
    "empty_weight",
    "zeros_in_huge_pages",
    # GPUs, and compiling kernels before they are launched
    "CompileAhead",
    "CompileCase",
    "Gpu",
    "KernelReport",
    "gpu_of",
    "kernel_folder",
    "num_compiled_kernels",
    # Back ends
    "KERNELS",
    "OpReport",
    "Regime",
    "backend_module",
    "describe",
    # Errors
    "BackendUnavailable",
    "KernelError",
]
