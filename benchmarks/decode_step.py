"""Time of a decode step's ops in graph replay on a GPU, as one chain over all layers.

    python benchmarks/decode_step.py            (--record [FOLDER] writes a result)

The layers, final norm and head of a dense Qwen3 as its model file calls them, random bf16 weights
of the published shapes, sequences of 1,024 tokens in blocks of 16 that lie in no order. The floor
is the time to read weights and cached tokens once, at the bandwidth of a streaming read in the
same run. Sampling, embedding and the host's time are not included.
"""

import argparse
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import triton
from _gpu import read_bandwidth, record, replay

from openinfer_kernels import (
    FusedAttentionSpec,
    FusedLinearSpec,
    LinearSpec,
    PagedAttentionSpec,
    PrefixGroup,
    PrefixTable,
    RMSNormSpec,
    SharedPrefixes,
    plan_fused_attention,
    plan_fused_linear,
    plan_rms_norm,
)
from openinfer_testing import results

DTYPE = torch.bfloat16
BLOCK_SIZE = 16
EPS = 1e-6
NUM_REPLAYS = 20


@dataclass(frozen=True)
class Shape:
    """A dense Qwen3."""

    hidden: int
    intermediate: int
    num_layers: int
    vocab: int = 151_936
    num_heads: int = 32
    num_kv_heads: int = 8
    head_dim: int = 128


SHAPES = {
    "Qwen3-0.6B": Shape(1024, 3072, 28, num_heads=16),
    "Qwen3-4B": Shape(2560, 9728, 36),
    "Qwen3-8B": Shape(4096, 12_288, 36),
}


def main() -> None:
    """Measures, prints and records."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    results.add_record_flag(parser)
    parser.add_argument("--shape", choices=SHAPES, action="append")
    parser.add_argument("--batch", type=int, action="append")
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--shared", type=int, default=0, help="leading tokens that all rows share")
    parser.add_argument("--backend", default="auto", help="of the fused ops")
    arguments = parser.parse_args()
    with torch.inference_mode():
        bandwidth = read_bandwidth()
        print(f"streaming read {bandwidth / 1e12:.2f} TB/s")
        rows = [
            row
            for name in arguments.shape or ["Qwen3-4B"]
            for row in _measure(name, bandwidth, arguments)
        ]
    if arguments.record:
        read_tb_s = round(bandwidth / 1e12, 3)
        fields = {"triton": triton.__version__, "read_tb_s": read_tb_s, "rows": rows}
        record(arguments.record, "decode_step", **fields)


class Chain:
    """A model's ops over weights of its own, for steps of one token a sequence."""

    def __init__(self, shape: Shape, backend: str) -> None:
        self.shape = shape
        width = shape.num_heads * shape.head_dim
        qkv_rows = width + 2 * shape.num_kv_heads * shape.head_dim
        hidden, intermediate = shape.hidden, shape.intermediate

        def product(num_in: int, num_out: int, **parts: Any) -> Any:
            linear = LinearSpec(in_features=num_in, out_features=num_out, dtype=DTYPE)
            return plan_fused_linear(FusedLinearSpec(linear=linear, **parts), "cuda", backend)

        def weight(num_out: int, num_in: int) -> tuple[torch.Tensor]:
            drawn = torch.randn(num_out, num_in, device="cuda", dtype=DTYPE)
            return (drawn.mul_(num_in**-0.5),)

        self.qkv = product(hidden, qkv_rows, norm_eps=EPS)
        self.out = product(width, hidden, adds_residual=True)
        self.gate_up = product(hidden, 2 * intermediate, norm_eps=EPS, is_gated=True)
        self.down = product(intermediate, hidden, adds_residual=True)
        self.head = product(hidden, shape.vocab)
        attention = PagedAttentionSpec(
            num_heads=shape.num_heads,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            block_size=BLOCK_SIZE,
            scale=shape.head_dim**-0.5,
            dtype=DTYPE,
        )
        spec = FusedAttentionSpec(attention=attention, norm_eps=EPS)
        self.attend = plan_fused_attention(spec, "cuda", backend)
        norm = RMSNormSpec(hidden_size=hidden, eps=EPS, dtype=DTYPE)
        self.norm = plan_rms_norm(norm, "cuda")
        self.norm_weight = torch.rand(hidden, device="cuda").add_(0.5).to(DTYPE)
        head_norm = torch.rand(shape.head_dim, device="cuda").add_(0.5).to(DTYPE)
        self.head_norms = (head_norm, head_norm)
        self.layers = [
            (
                weight(qkv_rows, hidden),
                weight(hidden, width),
                weight(2 * intermediate, hidden),
                weight(hidden, intermediate),
            )
            for _ in range(shape.num_layers)
        ]
        self.head_weight = weight(shape.vocab, hidden)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights, each read once a step."""
        layers = sum(w.nbytes for layer in self.layers for (w,) in layer)
        return layers + self.head_weight[0].nbytes

    def step(
        self, x: torch.Tensor, rows: Any, cos_sin: torch.Tensor, cache: torch.Tensor
    ) -> torch.Tensor:
        """Runs a step; the residual stream begins as a copy of x, as an embedding makes one."""
        x = x.clone()
        for index, (qkv, out, gate_up, down) in enumerate(self.layers):
            projected = self.qkv(x, qkv, self.norm_weight)
            heads = projected.view(len(x), -1, self.shape.head_dim)
            keys, values = cache[:, index, 0], cache[:, index, 1]
            attended = self.attend(heads, self.head_norms, cos_sin, rows, keys, values)
            x = self.out(attended, out, None, x)
            x = self.down(self.gate_up(x, gate_up, self.norm_weight), down, None, x)
        return self.head(self.norm(x, self.norm_weight), self.head_weight)  # type: ignore[no-any-return]


def _measure(name: str, bandwidth: float, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    shape, found = SHAPES[name], []
    chain = Chain(shape, arguments.backend)
    for batch in arguments.batch or [1, 8, 32, 64, 128]:
        inputs = _inputs(shape, batch, arguments.length, arguments.shared)
        took = replay([lambda inputs=inputs: chain.step(*inputs)], NUM_REPLAYS)
        token_bytes = 4 * shape.num_layers * shape.num_kv_heads * shape.head_dim
        num_tokens = batch * arguments.length - (batch - 1) * arguments.shared
        floor = (chain.weight_bytes + num_tokens * token_bytes) / bandwidth * 1e3
        print(
            f"{name} batch {batch:4d} at {arguments.length}: {took:7.3f} ms, floor {floor:7.3f} ms,"
            f" {floor / took:4.0%}",
            flush=True,
        )
        found.append(
            {
                "shape": name,
                "batch": batch,
                "length": arguments.length,
                "shared": arguments.shared,
                "backend": arguments.backend,
                "ms": round(took, 4),
                "floor_ms": round(floor, 4),
            }
        )
        del inputs
    return found


def _inputs(shape: Shape, batch: int, length: int, num_shared: int) -> tuple[Any, ...]:
    num_blocks = -(-length // BLOCK_SIZE)
    # One block more than is needed, so that a layer's stride is no power of two.
    size = (batch * num_blocks + 1, shape.num_layers, 2, BLOCK_SIZE)
    cache = torch.empty(*size, shape.num_kv_heads, shape.head_dim, device="cuda", dtype=DTYPE)
    for block in cache.split(64):
        block.normal_()
    table = torch.randperm(batch * num_blocks, device="cuda").to(torch.int32).view(batch, -1)
    table[:, : num_shared // BLOCK_SIZE] = table[0, : num_shared // BLOCK_SIZE].clone()
    rows = SimpleNamespace(
        positions=torch.full((batch,), length - 1, device="cuda"),
        slot_mapping=table[:, -1].long() * BLOCK_SIZE + (length - 1) % BLOCK_SIZE,
        cu_seqlens_q=torch.arange(batch + 1, device="cuda", dtype=torch.int32),
        seq_lens=torch.full((batch,), length, device="cuda", dtype=torch.int32),
        block_table=table,
        max_seqlen_q=1,
        max_seqlen_k=length,
        shared=_shared(shape, batch, num_shared),
    )
    frequencies = 1e6 ** -torch.linspace(0, 1, shape.head_dim // 2, device="cuda")
    angles = torch.arange(length, device="cuda")[:, None] * frequencies
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=1)
    return torch.randn(batch, shape.hidden, device="cuda", dtype=DTYPE), rows, cos_sin, cache


def _shared(shape: Shape, batch: int, num_tokens: int) -> SharedPrefixes | None:
    if not num_tokens:
        return None
    table = PrefixTable(batch, shape.num_kv_heads)
    group = PrefixGroup(members=np.arange(batch), num_tokens=num_tokens // BLOCK_SIZE * BLOCK_SIZE)
    return table.view(torch.from_numpy(table.packed([group])).to("cuda"))


if __name__ == "__main__":
    main()
