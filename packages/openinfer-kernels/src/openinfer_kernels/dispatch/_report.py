"""Which backend each op would run on, and why not another: what `openinfer doctor` prints."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, get_args

import torch

from openinfer_kernels.dispatch._choice import BACKEND_ORDER, choose, why_not
from openinfer_kernels.errors import BackendUnavailable
from openinfer_kernels.native import cache_folder, failure
from openinfer_kernels.ops.advance_rows import AdvanceRowsSpec
from openinfer_kernels.ops.fused_attention import FusedAttentionSpec
from openinfer_kernels.ops.fused_linear import FusedLinearSpec
from openinfer_kernels.ops.linear import LinearSpec, Quantization
from openinfer_kernels.ops.paged_attention import PagedAttentionSpec
from openinfer_kernels.ops.rms_norm import RMSNormSpec
from openinfer_kernels.ops.rope import RopeSpec
from openinfer_kernels.ops.sample import SampleSpec
from openinfer_kernels.ops.score_tokens import ScoreTokensSpec
from openinfer_kernels.ops.silu_and_mul import SiluAndMulSpec
from openinfer_kernels.ops.store_kv import StoreKVSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class OpReport:
    """One op on one device.

    Attributes:
        op: Name of the op; behind it the quantization of its weights, if they are quantized.
        backend: What "auto" chooses; None if nothing can run.
        available: Every backend that could be asked for by name, the chosen one included.
        unavailable: Backend name to the reason why it cannot run here.
    """

    op: str
    backend: str | None
    available: tuple[str, ...]
    unavailable: dict[str, str]


def kernel_folder(device: torch.device | str) -> str | None:
    """The folder of kernels that are compiled on the machine; None if there are none."""
    if torch.device(device).type == "cpu":
        return None if failure() is not None else str(cache_folder())
    try:
        import triton  # not every system has it
    except ModuleNotFoundError:
        return None
    return str(triton.knobs.cache.dir)


def describe(
    device: torch.device | str, specs: Mapping[str, Any] | None = None
) -> tuple[OpReport, ...]:
    """Reports every op for a device.

    Args:
        device: The device asked about.
        specs: Op name to spec; ops left out are asked about with the shapes of a bf16 Qwen3-4B.

    Returns:
        One report an op, in the order of the dispatch table, then `linear` with weights of 8 and
        of 4 bits.
    """
    device = torch.device(device)
    specs = {**_typical_specs(), **(specs or {})}
    reports = [_describe_op(op, op, specs[op], device) for op in BACKEND_ORDER]
    for quantization in get_args(Quantization):
        spec = replace(specs["linear"], quantization=quantization)
        reports.append(_describe_op(f"linear {quantization}", "linear", spec, device))
    return tuple(reports)


def _describe_op(name: str, op: str, spec: Any, device: torch.device) -> OpReport:
    backends = dict.fromkeys(name for order in BACKEND_ORDER[op].values() for name in order)
    reasons = {backend: why_not(op, spec, device, backend) for backend in backends}
    try:
        chosen = choose(op, spec, device).backend
    except BackendUnavailable:
        chosen = None
    return OpReport(
        op=name,
        backend=chosen,
        available=tuple(backend for backend, reason in reasons.items() if reason is None),
        unavailable={backend: reason for backend, reason in reasons.items() if reason is not None},
    )


def _typical_specs() -> dict[str, Any]:
    dtype = torch.bfloat16
    heads: dict[str, Any] = {"num_kv_heads": 8, "head_dim": 128, "dtype": dtype}
    attention = PagedAttentionSpec(num_heads=32, block_size=16, scale=128**-0.5, **heads)
    return {
        "rms_norm": RMSNormSpec(hidden_size=2560, eps=1e-6, dtype=dtype),
        "rope": RopeSpec(num_heads=32, **heads),
        "silu_and_mul": SiluAndMulSpec(intermediate_size=9728, dtype=dtype),
        "linear": LinearSpec(in_features=2560, out_features=6144, dtype=dtype),
        "fused_linear": FusedLinearSpec(
            linear=LinearSpec(in_features=2560, out_features=6144, dtype=dtype), norm_eps=1e-6
        ),
        "store_kv": StoreKVSpec(block_size=16, **heads),
        "paged_attention": attention,
        "fused_attention": FusedAttentionSpec(attention=attention, norm_eps=1e-6),
        "advance_rows": AdvanceRowsSpec(block_size=16),
        "sample": SampleSpec(vocab_size=151_936, num_slots=256, max_rows=256),
        "score_tokens": ScoreTokensSpec(vocab_size=151_936, max_rows=256),
    }
