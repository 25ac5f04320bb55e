"""Launches of the attention kernel for Hopper (`_gluon_prefill_kernels`), for long prefills."""

from typing import Any

import torch
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from openinfer_kernels.gpu._compile_case import CompileCase
from openinfer_kernels.gpu._support import TRITON_DTYPES, why_not_hopper
from openinfer_kernels.ops.paged_attention import PagedAttentionSpec, _gluon_prefill_kernels
from openinfer_kernels.ops.paged_attention._tuning import GLUON_PREFILL, prefill_signature


def why_not_gluon(spec: PagedAttentionSpec, device: torch.device) -> str | None:
    """Returns None if the kernel for Hopper runs this spec on this device, else the reason."""
    reason = why_not_hopper(device)
    if reason is not None:
        return reason
    if spec.head_dim != _gluon_prefill_kernels.HEAD_DIM or spec.dtype.itemsize != 2:
        return f"heads must have {_gluon_prefill_kernels.HEAD_DIM} dimensions of 16 bits"
    if spec.num_heads // spec.num_kv_heads not in (1, 2, 4, 8, 16):
        return "a group must have 1, 2, 4, 8 or 16 heads"
    if spec.block_size not in (16, 32, 64, 128):
        return f"blocks must hold 16, 32, 64 or 128 tokens, got {spec.block_size}"
    return None


class GluonPrefillLauncher:
    """Launches `prefill_kernel` of Hopper. It allocates no memory."""

    def __init__(self, spec: PagedAttentionSpec) -> None:
        """Computes the sizes of a tile."""
        self._spec = spec
        self._queries_per_tile = (
            _gluon_prefill_kernels.BLOCK_M * spec.num_kv_heads // spec.num_heads
        )
        self._constexprs = {
            "NUM_HEADS": spec.num_heads,
            "NUM_KV_HEADS": spec.num_kv_heads,
            "BLOCK_SIZE": spec.block_size,
        }

    def fills_tiles(self, num_tokens: int, num_seqs: int) -> bool:
        """Returns whether this kernel is faster for a step than the Triton kernel.

        Its tiles must be filled, and there must be a full tile for each sequence on average. A
        multiprocessor runs one of these programs at a time, so a sequence of one token, or padding
        with none, delays others for longer than in the Triton kernel.
        """
        num_tiles = num_tokens // self._queries_per_tile
        enough = num_tiles * self._spec.num_kv_heads >= GLUON_PREFILL["hopper"].min_programs
        return enough and num_tiles >= num_seqs

    def __call__(
        self,
        q: torch.Tensor,
        cache: tuple[torch.Tensor, ...],
        out: torch.Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        /,
    ) -> None:
        """Attends into `out`; arguments as in `TritonPrefillLauncher`."""
        k_cache, v_cache, cu_seqlens_q, seq_lens, block_table = cache
        num_seqs = seq_lens.shape[0]
        num_tiles = q.shape[0] // self._queries_per_tile + num_seqs
        kernel: Any = _gluon_prefill_kernels.prefill_kernel
        kernel[(self._spec.num_kv_heads, num_tiles)](
            q,
            _block_descriptor(k_cache),
            _block_descriptor(v_cache),
            cu_seqlens_q,
            seq_lens,
            block_table,
            out,
            q.stride(0),
            block_table.stride(0),
            num_seqs,
            self._spec.scale,
            **self._constexprs,
            PDL=True,
            num_warps=4,
            launch_pdl=True,
        )


def _block_descriptor(cache: torch.Tensor) -> TensorDescriptor:
    """Returns the TMA descriptor of a cache, whose box is half a head of one block.

    A descriptor's strides are 64 bits wide, so the cache may exceed 2**31 elements.
    """
    num_blocks, block_size, num_kv_heads, head_dim = cache.shape
    width = num_kv_heads * head_dim
    return TensorDescriptor(
        cache,
        [num_blocks, block_size, width],
        [cache.stride(0), width, 1],
        [1, block_size, _gluon_prefill_kernels.BLOCK_COLUMNS],
        _gluon_prefill_kernels.BLOCK_LAYOUT,
    )


def compile_case(spec: PagedAttentionSpec, shape: str) -> CompileCase | None:
    """Returns the kernel for a spec, or None if its heads are not supported."""
    if spec.head_dim != _gluon_prefill_kernels.HEAD_DIM or spec.dtype.itemsize != 2:
        return None
    dtype = TRITON_DTYPES[spec.dtype]
    block = f"{dtype}[1, {spec.block_size}, {_gluon_prefill_kernels.BLOCK_COLUMNS}]"
    cache = f"tensordesc<{block},{_gluon_prefill_kernels.BLOCK_LAYOUT!r}>"
    return CompileCase(
        name=f"paged_attention.prefill-hopper-{shape}",
        kernel=_gluon_prefill_kernels.prefill_kernel,
        signature={**prefill_signature(dtype), "k_cache": cache, "v_cache": cache},
        constexprs={
            "NUM_HEADS": spec.num_heads,
            "NUM_KV_HEADS": spec.num_kv_heads,
            "BLOCK_SIZE": spec.block_size,
        },
        has_pdl=True,
        archs=(90,),
    )
