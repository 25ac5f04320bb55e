"""Each kernel of a step beside its floor: graph replay, another layer's memory each time.

    python benchmarks/kernel_floors.py [--record FOLDER]

Qwen3-4B's shapes in bfloat16. An op runs once over the weights or cached tokens of every layer, so
that nothing it reads is in the L2 cache, and a draw over as many logits as that takes; only rows
are lengthened in a warm one. What is printed is one layer's. The floor is the larger of
bytes read, at the streaming read of the same run, and operations, at its large product; an op with
little of both has only its launch, and no floor. Prints one JSON object a line.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import triton
from _gpu import num_cold, product_flops, read_bandwidth, record, replay
from decode_step import BLOCK_SIZE, DTYPE, SHAPES, Chain, _inputs

from openinfer_contract import GenerateRequest, Sampling, StopRules, pack_ids
from openinfer_kernels import (
    AdvanceRowsSpec,
    RowTables,
    StepRows,
    StepTensors,
    plan_advance_rows,
)
from openinfer_sampler import CAPTURED_NEEDS, Sampler
from openinfer_scheduler import LOOKAHEAD
from openinfer_testing import results

NUM_REPLAYS = 12

SHAPE = SHAPES["Qwen3-4B"]
DECODES = ((1, 100), (1, 1024), (1, 16_384), (8, 1024), (32, 1024), (64, 1024))
SHARED = ((8, 4296, 4096), (64, 4296, 4096))
PROMPTS = ((32, 32), (1024, 1024), (2048, 16_384), (8192, 16_384))

Row = tuple[str, list[Callable[[], Any]], int, int]
"""Name, one call of the op for each layer, bytes that it reads, operations."""


def main() -> None:
    """Measures, prints and records."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    results.add_record_flag(parser)
    arguments = parser.parse_args()
    found = []
    with torch.inference_mode():
        bandwidth, flops = read_bandwidth(), product_flops()
        floors = {"read_tb_s": round(bandwidth / 1e12, 3), "tflop_s": round(flops / 1e12, 1)}
        print(json.dumps(floors), flush=True)
        chain = Chain(SHAPE, "auto")
        for rows in (_products(chain), _decodes(chain), _prompts(chain), _advances(), _draws()):
            for name, steps, num_bytes, operations in rows:
                took = replay(steps, NUM_REPLAYS) * 1e3
                floor = max(num_bytes / bandwidth, operations / flops) * 1e6
                result = {"op": name, "us": round(took, 2)}
                if num_bytes or operations:
                    result |= {"floor_us": round(floor, 2), "share": round(floor / took, 3)}
                print(json.dumps(result), flush=True)
                found.append(result)
    if arguments.record:
        fields = {"triton": triton.__version__, "floors": floors, "rows": found}
        record(arguments.record, "kernel_floors", **fields)


def _products(chain: Chain) -> Iterator[Row]:
    width = SHAPE.num_heads * SHAPE.head_dim
    ops = {
        "qkv": (chain.qkv, 0, SHAPE.hidden),
        "o": (chain.out, 1, width),
        "gate_up": (chain.gate_up, 2, SHAPE.hidden),
        "down": (chain.down, 3, SHAPE.intermediate),
    }
    for num_rows in (1, 8, 16, 32, 64, 1024):
        for name, (op, index, num_in) in ops.items():
            x = torch.randn(num_rows, num_in, device="cuda", dtype=DTYPE)
            extra: tuple[Any, ...] = (chain.norm_weight,)
            if index in (1, 3):
                extra = (None, torch.randn(num_rows, SHAPE.hidden, device="cuda", dtype=DTYPE))
            weights = [layer[index] for layer in chain.layers]
            steps = [partial(op, x, weight, *extra) for weight in weights]
            (weight,) = weights[0]
            yield f"{name}, {num_rows} rows", steps, weight.nbytes, 2 * num_rows * weight.numel()
    for num_rows in (1, 8, 64):
        x = torch.randn(num_rows, SHAPE.hidden, device="cuda", dtype=DTYPE)
        (weight,) = chain.head_weight
        head = partial(chain.head, x, chain.head_weight)
        operations = 2 * num_rows * weight.numel()
        yield f"head, {num_rows} rows", [head, head], weight.nbytes, operations


def _attention(chain: Chain, inputs: tuple[Any, ...], num_tokens: int) -> list[Callable[[], Any]]:
    _, rows, cos_sin, cache = inputs
    heads = SHAPE.num_heads + 2 * SHAPE.num_kv_heads
    qkv = torch.randn(num_tokens, heads, SHAPE.head_dim, device="cuda", dtype=DTYPE)
    return [
        partial(
            chain.attend, qkv, chain.head_norms, cos_sin, rows, cache[:, at, 0], cache[:, at, 1]
        )
        for at in range(SHAPE.num_layers)
    ]


def _decodes(chain: Chain) -> Iterator[Row]:
    token_bytes = 4 * SHAPE.num_kv_heads * SHAPE.head_dim
    for batch, length, shared in (*((*each, 0) for each in DECODES), *SHARED):
        inputs = _inputs(SHAPE, batch, length, shared)
        num_tokens = batch * length - (batch - 1) * shared
        name = f"decode attention, {batch} x {length}" + (f", {shared} shared" if shared else "")
        yield name, _attention(chain, inputs, batch), num_tokens * token_bytes, 0


def _prompts(chain: Chain) -> Iterator[Row]:
    for num_new, length in PROMPTS:
        inputs = _inputs(SHAPE, 1, length, 0)
        rows = inputs[1]
        positions = torch.arange(length - num_new, length, device="cuda")
        blocks = rows.block_table[0].long()
        slots = blocks[positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
        starts = torch.tensor([0, num_new], device="cuda", dtype=torch.int32)
        prompt = SimpleNamespace(**vars(rows))
        prompt.positions, prompt.slot_mapping, prompt.cu_seqlens_q = positions, slots, starts
        prompt.max_seqlen_q = num_new
        num_pairs = num_new * (length - num_new) + num_new * (num_new + 1) // 2
        operations = 4 * num_pairs * SHAPE.num_heads * SHAPE.head_dim
        steps = _attention(chain, (inputs[0], prompt, *inputs[2:]), num_new)
        yield f"prompt attention, {num_new} of {length}", steps, 0, operations


def _advances() -> Iterator[Row]:
    advance = plan_advance_rows(AdvanceRowsSpec(block_size=BLOCK_SIZE), "cuda")
    for batch in (1, 64, 256):
        zeros = partial(torch.zeros, device="cuda", dtype=torch.int64)
        tables = RowTables(
            block_table=zeros(batch + 1, 2560, dtype=torch.int32),
            seq_lens=zeros(batch + 1) + 1024,
            last_token=zeros(batch + 1),
        )
        slots = torch.arange(batch + 1, device="cuda")
        out = StepTensors.allocate(batch, batch, 2560, "cuda")
        for name, num_new in (("", 0), (", all grow", 1 + LOOKAHEAD)):
            rows = StepRows(
                slots=slots[:-1],
                begins=slots,
                draw_slots=slots[:-1],
                start_lens=zeros(batch) - 1,
                new_columns=zeros(batch),
                new_begins=slots * num_new,
                token_ids=zeros(batch) - 1,
                new_blocks=zeros((1 + LOOKAHEAD) * batch),
                is_decode=True,
            )
            yield f"advance_rows, {batch}{name}", [partial(advance, tables, rows, out)] * 16, 0, 0


def _draws() -> Iterator[Row]:
    shaped = Sampling(temperature=0.8, top_k=50, top_p=0.9, frequency_penalty=0.2)
    controls = (("greedy", Sampling(temperature=0.0)), ("filters and a penalty", shaped))
    for batch in (1, 64, 256):
        sampler = Sampler(num_slots=batch, vocab_size=SHAPE.vocab, device="cuda")
        num_logits = num_cold(batch * SHAPE.vocab * DTYPE.itemsize)
        logits = [
            torch.randn(batch, SHAPE.vocab, device="cuda").mul_(4).to(DTYPE)
            for _ in range(num_logits)
        ]
        slots = torch.arange(batch, device="cuda")
        for (name, sampling), needs in zip(controls, CAPTURED_NEEDS, strict=True):
            request = GenerateRequest(
                request_id="",
                prompt_token_ids=pack_ids([1, 2]),
                stop=StopRules(max_tokens=2),
                sampling=sampling,
            )
            for slot in range(batch):
                sampler.set(slot, request, seed=slot)
            sampler.capturable_needs(slots.cpu().numpy())
            steps = [
                partial(sampler.draw_captured, each, slots, slots + 2, needs) for each in logits
            ]
            yield f"draw, {batch} rows, {name}", steps, logits[0].nbytes, 0


if __name__ == "__main__":
    main()
