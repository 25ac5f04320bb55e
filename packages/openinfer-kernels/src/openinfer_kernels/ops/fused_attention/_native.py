"""fused_attention on the CPU in one native call, rounded where its native parts round."""

import torch

from openinfer_kernels.native import library, wrong_tensors
from openinfer_kernels.ops.fused_attention import AttentionStep, FusedAttention, FusedAttentionSpec
from openinfer_kernels.ops.paged_attention._native import SequenceChecks
from openinfer_kernels.ops.paged_attention._native import supports as supports_attention

# Error codes of the kernel.
_NO_MEMORY, _POSITION_BEYOND, _SLOT_BEYOND = 1, 2, 3


def supports(spec: FusedAttentionSpec, device: torch.device) -> str | None:
    """Returns None if the native `paged_attention` runs this spec here, else the reason."""
    return supports_attention(spec.attention, device)


def plan(spec: FusedAttentionSpec, device: torch.device | str) -> FusedAttention:
    """Binds the native kernel to a spec."""
    return _Native(spec)


class _Native:
    def __init__(self, spec: FusedAttentionSpec) -> None:
        of = spec.attention
        self._native = library().fused_attention
        self._spec = spec
        self._sizes = (of.num_heads, of.num_kv_heads, of.head_dim, of.block_size)
        self._qkv = (of.num_heads + 2 * of.num_kv_heads, of.head_dim)
        self._check_sequences = SequenceChecks("fused_attention", of)
        self._width = of.num_heads * of.head_dim

    def __call__(
        self,
        qkv: torch.Tensor,
        norm_weights: tuple[torch.Tensor, torch.Tensor] | None,
        cos_sin: torch.Tensor,
        step: AttentionStep,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        /,
    ) -> torch.Tensor:
        self._check_rows(qkv, norm_weights, cos_sin, step)
        self._check_sequences(step, k_cache, v_cache)
        num_tokens, table = qkv.size(0), step.block_table
        out = torch.empty(num_tokens, self._width, dtype=qkv.dtype)
        q_norm, k_norm = (None, None) if norm_weights is None else norm_weights
        failure = self._native(
            out.data_ptr(),
            qkv.data_ptr(),
            k_cache.data_ptr(),
            v_cache.data_ptr(),
            k_cache.stride(0),
            step.cu_seqlens_q.data_ptr(),
            step.seq_lens.data_ptr(),
            table.data_ptr(),
            table.stride(0),
            table.size(0),
            *self._sizes,
            self._spec.attention.scale,
            None if q_norm is None else q_norm.data_ptr(),
            None if k_norm is None else k_norm.data_ptr(),
            self._spec.norm_eps or 0.0,
            cos_sin.data_ptr(),
            step.positions.data_ptr(),
            step.slot_mapping.data_ptr(),
            cos_sin.size(0),
            k_cache.size(0),
            num_tokens,
            torch.get_num_threads(),
        )
        if failure:
            raise self._failed(failure, cos_sin, step, k_cache)
        return out

    def _check_rows(
        self,
        qkv: torch.Tensor,
        norm_weights: tuple[torch.Tensor, torch.Tensor] | None,
        cos_sin: torch.Tensor,
        step: AttentionStep,
    ) -> None:
        num_tokens, head_dim = qkv.size(0), self._sizes[2]
        positions, slots = step.positions, step.slot_mapping
        if (
            qkv.dtype is not torch.bfloat16
            or cos_sin.dtype is not torch.float32
            or positions.dtype is not torch.int64
            or slots.dtype is not torch.int64
            or qkv.shape[1:] != self._qkv
            or cos_sin.size(-1) != head_dim
            or positions.shape != (num_tokens,)
            or slots.shape != (num_tokens,)
            or not (qkv.is_contiguous() and cos_sin.is_contiguous())
            or not (positions.is_contiguous() and slots.is_contiguous())
            or not (qkv.is_cpu and cos_sin.is_cpu and positions.is_cpu and slots.is_cpu)
        ):
            wanted = (
                f"qkv [num_tokens, {self._qkv[0]}, {head_dim}] in bf16, cos_sin [max_positions, "
                f"{head_dim}] in float32, positions and slot_mapping [num_tokens] in int64, all "
                "contiguous"
            )
            given = {"qkv": qkv, "cos_sin": cos_sin, "positions": positions}
            raise wrong_tensors("fused_attention", wanted, **given, slot_mapping=slots)
        if (norm_weights is None) != (self._spec.norm_eps is None):
            raise ValueError("fused_attention takes norm_weights where its spec has norm_eps")
        for weight in norm_weights or ():
            if (
                weight.dtype is not torch.bfloat16
                or weight.shape != (head_dim,)
                or not weight.is_contiguous()
                or not weight.is_cpu
            ):
                wanted = f"norm weights [{head_dim}] in bf16, contiguous"
                raise wrong_tensors("fused_attention", wanted, norm_weight=weight)

    def _failed(
        self, failure: int, cos_sin: torch.Tensor, step: AttentionStep, k_cache: torch.Tensor
    ) -> Exception:
        if failure == _NO_MEMORY:
            return MemoryError("no memory for the partial results of attention")
        if failure == _POSITION_BEYOND:
            position = _first_beyond(step.positions, len(cos_sin))
            reason = f"position {position} is not in a table of {len(cos_sin)}"
        else:
            num_slots = k_cache.size(0) * self._sizes[3]
            slot = _first_beyond(step.slot_mapping, num_slots)
            reason = f"slot {slot} is not in a cache of {num_slots} slots"
        return ValueError(f"fused_attention: {reason}")


def _first_beyond(indices: torch.Tensor, limit: int) -> int:
    return int(indices[(indices < 0) | (indices >= limit)][0])
