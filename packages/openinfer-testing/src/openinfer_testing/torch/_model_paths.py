"""Paths of a model without an engine: the ways in which an engine may cut sequences into steps.

A model file that passes the accuracy gate on all of them computes what transformers computes,
whatever the scheduler does.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from openinfer_nn import CacheView, StepInputs, load_weights
from openinfer_testing.torch._gate import next_token_only
from openinfer_testing.torch._reference import FloatArray

_CHUNK = 7
_MIXED_CHUNKS = (1, 5, 16, 11)
_BLOCK_ORDER_SEED = 0


@dataclass
class CachedSequence:
    """A sequence on a model.

    Attributes:
        blocks: Its cache blocks, in order.
        num_cached: Tokens in the cache.
        logprobs: One row after each token so far, [vocab_size].
    """

    blocks: list[int] = field(default_factory=list)
    num_cached: int = 0
    logprobs: list[torch.Tensor] = field(default_factory=list)


class ModelHarness:
    """A model with weights and an arena, and the code that packs sequences into steps.

    Attributes:
        model: The model.
        cache: Its cache.
    """

    def __init__(
        self,
        folder: Path,
        build: Callable[[], Any],
        *,
        device: str = "cpu",
        block_size: int = 16,
        num_blocks: int = 96,
    ) -> None:
        """Builds the model and loads its weights.

        Args:
            folder: The checkpoint.
            build: Allocates the model for `device` and `block_size`; runs in inference mode.
            device: Device of the model.
            block_size: Tokens per cache block.
            num_blocks: Blocks of the arena.
        """
        self._device, self._block_size = device, block_size
        with torch.inference_mode():
            self.model = build()
            load_weights(folder, self.model, self.model.weight_map(), num_threads=2)
            spec = self.model.cache_spec()
            # 0xFF bytes are NaN in every dtype, so a read of an unwritten slot gives NaN.
            size = num_blocks * spec.bytes_per_block(block_size)
            arena = torch.full((size,), 0xFF, dtype=torch.uint8).to(device)
            self.cache = CacheView(arena, spec, block_size=block_size, num_blocks=num_blocks)
        # Blocks are allocated in random order, as in a cache that has been in use.
        generator = torch.Generator().manual_seed(_BLOCK_ORDER_SEED)
        self._free_blocks = torch.randperm(num_blocks, generator=generator).tolist()

    def step(self, rows: Sequence[tuple[CachedSequence, Sequence[int]]]) -> None:
        """Runs the next tokens of each sequence and appends the logprobs after each token."""
        inputs = self.pack(rows)
        with torch.inference_mode():
            hidden = self.model(inputs, self.cache)
            logits = self.model.logits(hidden.index_select(0, inputs.logits_indices))
            logprobs = torch.log_softmax(logits.float(), dim=-1).cpu()
        ends = inputs.cu_seqlens_q.tolist()
        for index, (sequence, _) in enumerate(rows):
            sequence.logprobs.extend(logprobs[ends[index] : ends[index + 1]])

    def pack(self, rows: Sequence[tuple[CachedSequence, Sequence[int]]]) -> StepInputs:
        """Returns the inputs of one step; allocates the blocks that it needs."""
        block_size = self._block_size
        token_ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        ends = [0]
        for sequence, ids in rows:
            begin, end = sequence.num_cached, sequence.num_cached + len(ids)
            while len(sequence.blocks) * block_size < end:
                sequence.blocks.append(self._free_blocks.pop())
            token_ids += ids
            positions += range(begin, end)
            slots += [
                sequence.blocks[p // block_size] * block_size + p % block_size
                for p in range(begin, end)
            ]
            ends.append(len(token_ids))
            sequence.num_cached = end
        width = max(len(sequence.blocks) for sequence, _ in rows)
        table = [s.blocks + [0] * (width - len(s.blocks)) for s, _ in rows]
        lengths = [sequence.num_cached for sequence, _ in rows]

        def tensor(values: object, dtype: torch.dtype) -> torch.Tensor:
            return torch.tensor(values, dtype=dtype, device=self._device)

        return StepInputs(
            token_ids=tensor(token_ids, torch.int64),
            positions=tensor(positions, torch.int64),
            cu_seqlens_q=tensor(ends, torch.int32),
            seq_lens=tensor(lengths, torch.int32),
            block_table=tensor(table, torch.int32),
            slot_mapping=tensor(slots, torch.int64),
            logits_indices=tensor(list(range(len(token_ids))), torch.int64),
            max_seqlen_q=max(len(ids) for _, ids in rows),
            max_seqlen_k=max(lengths),
        )


ModelPath = Callable[[ModelHarness, Sequence[Sequence[int]]], list[FloatArray]]
"""Runs token ids through a model; returns logprobs as a `LogprobPath` does."""


def alone(harness: ModelHarness, prompts: Sequence[Sequence[int]]) -> list[FloatArray]:
    """Runs each sequence in one step of its own."""
    sequences = [CachedSequence() for _ in prompts]
    for sequence, ids in zip(sequences, prompts, strict=True):
        harness.step([(sequence, ids)])
    return _rows(sequences)


def batched(harness: ModelHarness, prompts: Sequence[Sequence[int]]) -> list[FloatArray]:
    """Runs all sequences, of mixed lengths, in one step."""
    sequences = [CachedSequence() for _ in prompts]
    harness.step(list(zip(sequences, prompts, strict=True)))
    return _rows(sequences)


def chunked(
    harness: ModelHarness, prompts: Sequence[Sequence[int]], chunk: int = _CHUNK
) -> list[FloatArray]:
    """Runs chunks of all sequences until the longest is complete."""
    sequences = [CachedSequence() for _ in prompts]
    for begin in range(0, max(map(len, prompts)), chunk):
        parts = [(s, ids[begin : begin + chunk]) for s, ids in zip(sequences, prompts, strict=True)]
        harness.step([(s, ids) for s, ids in parts if ids])
    return _rows(sequences)


def decode(harness: ModelHarness, prompts: Sequence[Sequence[int]]) -> list[FloatArray]:
    """Runs all sequences token by token."""
    return chunked(harness, prompts, chunk=1)


def prefix_cached(harness: ModelHarness, prompts: Sequence[Sequence[int]]) -> list[FloatArray]:
    """Runs each sequence twice; the second run shares the full blocks of the first."""
    block_size = harness.cache.block_size
    sequences = []
    for ids in prompts:
        donor = CachedSequence()
        harness.step([(donor, ids)])
        num_shared = (len(ids) - 1) // block_size
        reader = CachedSequence(
            blocks=donor.blocks[:num_shared],
            num_cached=num_shared * block_size,
            logprobs=donor.logprobs[: num_shared * block_size],
        )
        harness.step([(reader, ids[num_shared * block_size :])])
        sequences.append(reader)
    return _rows(sequences)


def mixed(harness: ModelHarness, prompts: Sequence[Sequence[int]]) -> list[FloatArray]:
    """Decodes one sequence while the others are prefilled in chunks of different sizes."""
    sequences = [CachedSequence() for _ in prompts]
    todo = [list(ids) for ids in prompts]
    while any(todo):
        rows = []
        for index, sequence in enumerate(sequences):
            size = _MIXED_CHUNKS[index % len(_MIXED_CHUNKS)]
            part, todo[index] = todo[index][:size], todo[index][size:]
            if part:
                rows.append((sequence, part))
        harness.step(rows)
    return _rows(sequences)


def decoded_at_length(
    harness: ModelHarness, prompts: Sequence[Sequence[int]], num_decoded: int = 24
) -> list[FloatArray]:
    """Prefills all but the last tokens in one step, then decodes all sequences together.

    Prompt rows report only the logprob of the next token, so that the gate's means are those of
    decode steps.
    """
    sequences = [CachedSequence() for _ in prompts]
    heads = [ids[:-num_decoded] for ids in prompts]
    harness.step(list(zip(sequences, heads, strict=True)))
    for index in range(-num_decoded, 0):
        harness.step([(s, [ids[index]]) for s, ids in zip(sequences, prompts, strict=True)])
    rows = _rows(sequences)
    for logprobs, ids in zip(rows, prompts, strict=True):
        num_prompt_rows = len(ids) - num_decoded
        logprobs[:num_prompt_rows] = next_token_only(logprobs[:num_prompt_rows], ids)
    return rows


MODEL_PATHS: Mapping[str, ModelPath] = {
    path.__name__: path for path in (alone, batched, chunked, decode, prefix_cached, mixed)
}
"""Six paths by name, for sequences of any length."""


def _rows(sequences: Sequence[CachedSequence]) -> list[FloatArray]:
    return [np.asarray(torch.stack(sequence.logprobs[:-1])) for sequence in sequences]
