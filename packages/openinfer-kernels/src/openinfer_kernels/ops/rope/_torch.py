"""rope in torch, with few operators: in a step of one token, each call costs more than its work.

On a CPU, the float32 intermediates of a prefill take tens of megabytes. Each operator would write
them to memory, on pages that the system allocates first, and the next would read them back. Blocks
of tokens whose intermediates fit the second-level cache avoid that: 0.8 instead of 5.5 ms per layer
for 512 tokens of Qwen3-0.6B on two Zen 4 cores, which is 8 % of the prefill.
"""

import torch

from openinfer_kernels.ops.rope import Rope, RopeSpec

# Elements of queries and keys in one block: 512 KiB of float32, half of a usual L2 cache.
_CPU_BLOCK = 1 << 17


def plan(spec: RopeSpec, device: torch.device | str) -> Rope:
    """Returns `rope` for a spec and a device."""
    rope = _plan_whole(spec)
    if torch.device(device).type != "cpu":
        return rope
    block = max(1, _CPU_BLOCK // ((spec.num_heads + spec.num_kv_heads) * spec.head_dim))

    def rope_in_blocks(
        q: torch.Tensor, k: torch.Tensor, cos_sin: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        num_tokens = q.shape[0]
        if num_tokens <= block:
            return rope(q, k, cos_sin, positions)
        q_out, k_out = torch.empty(q.shape, dtype=q.dtype), torch.empty(k.shape, dtype=k.dtype)
        for begin in range(0, num_tokens, block):
            rows = slice(begin, begin + block)
            q_out[rows], k_out[rows] = rope(q[rows], k[rows], cos_sin, positions[rows])
        return q_out, k_out

    return rope_in_blocks


def _plan_whole(spec: RopeSpec) -> Rope:
    """Binds rope over all tokens at once; queries and keys are rotated as one tensor."""
    half, num_heads = spec.head_dim // 2, spec.num_heads

    def rope(
        q: torch.Tensor, k: torch.Tensor, cos_sin: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        table = cos_sin.index_select(0, positions).unsqueeze(1)  # [T, 1, D]
        cos, sin = table[..., :half], table[..., half:]
        x = torch.cat((q, k), dim=1).float()  # [T, H + KVH, D]
        first, second = x[..., :half], x[..., half:]
        out = torch.empty_like(x)
        torch.addcmul(first * cos, second, sin, value=-1, out=out[..., :half])
        torch.addcmul(second * cos, first, sin, out=out[..., half:])
        out = out.to(q.dtype)
        return out[:, :num_heads], out[:, num_heads:]

    return rope
