"""How prompts are launched on Hopper, see `_gluon_prefill_kernels`."""

from typing import Any

import torch
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from openinfer_kernels.gpu._support import TRITON_DTYPES, CompileCase, why_not_hopper
from openinfer_kernels.ops.paged_attention import PagedAttentionSpec, _gluon_prefill_kernels
from openinfer_kernels.ops.paged_attention._tuning import prefill_inputs

# Programs from which on the kernel for Hopper is faster, though an H200 would run 132 at a time.
_MIN_GLUON_PROGRAMS = 64


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


class GluonPrefill:
    """The launch of `_gluon_prefill_kernels`. It takes no memory but the output."""

    def __init__(self, spec: PagedAttentionSpec) -> None:
        """Binds it."""
        self._spec = spec
        self._queries = _gluon_prefill_kernels.ROWS * spec.num_kv_heads // spec.num_heads
        self._constexprs = {
            "NUM_HEADS": spec.num_heads,
            "NUM_KV_HEADS": spec.num_kv_heads,
            "BLOCK_SIZE": spec.block_size,
        }

    def is_worth_it(self, num_tokens: int, num_seqs: int) -> bool:
        """Whether so many tokens fill tiles enough, and a tile for each sequence.

        A sequence of one token takes a program longer here than the other kernel's, and so does
        padding that has none: a multiprocessor runs one program at a time.
        """
        num_tiles = num_tokens // self._queries
        enough = num_tiles * self._spec.num_kv_heads >= _MIN_GLUON_PROGRAMS
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
        """Attends."""
        k_cache, v_cache, cu_seqlens_q, seq_lens, block_table = cache
        num_seqs = seq_lens.shape[0]
        num_tiles = q.shape[0] // self._queries + num_seqs
        kernel: Any = _gluon_prefill_kernels.prefill_kernel
        kernel[(self._spec.num_kv_heads, num_tiles)](
            q,
            _blocks_of(k_cache),
            _blocks_of(v_cache),
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


def _blocks_of(cache: torch.Tensor) -> TensorDescriptor:
    """Half a head of a block, as one copy moves it; the descriptor's offsets are 64 bits wide."""
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
    """The kernel for a spec, if it is for such heads; `shape` ends its name."""
    if spec.head_dim != _gluon_prefill_kernels.HEAD_DIM or spec.dtype.itemsize != 2:
        return None
    dtype = TRITON_DTYPES[spec.dtype]
    block = f"{dtype}[1, {spec.block_size}, {_gluon_prefill_kernels.BLOCK_COLUMNS}]"
    cache = f"tensordesc<{block},{_gluon_prefill_kernels.BLOCK_LAYOUT!r}>"
    return CompileCase(
        name=f"paged_attention.prefill-hopper-{shape}",
        kernel=_gluon_prefill_kernels.prefill_kernel,
        signature={**prefill_inputs(dtype), "k_cache": cache, "v_cache": cache},
        constexprs={
            "NUM_HEADS": spec.num_heads,
            "NUM_KV_HEADS": spec.num_kv_heads,
            "BLOCK_SIZE": spec.block_size,
        },
        has_pdl=True,
        archs=(90,),
    )
