import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch

from openinfer_nn import CacheView, StepInputs, load_weights
from openinfer_qwen3.config import Qwen3Config
from openinfer_qwen3.model import Qwen3Model
from openinfer_testing.torch import TINY_CHECKPOINTS, TinyCheckpoint, next_token_only

BLOCK_SIZE = 16
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory) -> Callable[[str], Path]:
    """Returns the folder of a tiny checkpoint by name or shape; each is written once."""
    root = tmp_path_factory.mktemp("tiny")
    shapes = {shape.name: shape for shape in TINY_CHECKPOINTS}

    def write(shape: str | TinyCheckpoint) -> Path:
        shape = shapes[shape] if isinstance(shape, str) else shape
        folder = root / shape.name
        return folder if folder.exists() else shape.write(folder)

    return write


@dataclass
class CachedSequence:
    """A sequence: its cache blocks, its number of cached tokens, its logprobs so far."""

    blocks: list[int] = field(default_factory=list)
    num_cached: int = 0
    logprobs: list[torch.Tensor] = field(default_factory=list)


class Harness:
    """A model, an arena, and the code that packs sequences into steps."""

    def __init__(
        self,
        folder: Path,
        dtype: torch.dtype = torch.float32,
        *,
        device: str = "cpu",
        num_blocks: int = 96,
        attention_backend: str = "auto",
        quantization: str | None = None,
        is_fused: bool = True,
    ) -> None:
        config = Qwen3Config.from_dict(json.loads((folder / "config.json").read_text()))
        self.device = device
        with torch.inference_mode():
            self.model = Qwen3Model(
                config,
                device=device,
                dtype=dtype,
                block_size=BLOCK_SIZE,
                attention_backend=attention_backend,
                quantization=quantization,
                is_fused=is_fused,
            )
            load_weights(folder, self.model, self.model.weight_map(), num_threads=2)
            spec = self.model.cache_spec()
            # All bits set is NaN in every dtype, so a read of an unwritten slot shows.
            arena = torch.full(
                (num_blocks * spec.bytes_per_block(BLOCK_SIZE),), 0xFF, dtype=torch.uint8
            )
            self.cache = CacheView(
                arena.to(device), spec, block_size=BLOCK_SIZE, num_blocks=num_blocks
            )
        # Blocks are allocated in random order, as from a used pool.
        order = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(0))
        self.free_blocks = order.tolist()

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
        token_ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        ends = [0]
        for sequence, ids in rows:
            begin, end = sequence.num_cached, sequence.num_cached + len(ids)
            while len(sequence.blocks) * BLOCK_SIZE < end:
                sequence.blocks.append(self.free_blocks.pop())
            token_ids += ids
            positions += range(begin, end)
            slots += [
                sequence.blocks[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE
                for p in range(begin, end)
            ]
            ends.append(len(token_ids))
            sequence.num_cached = end
        width = max(len(sequence.blocks) for sequence, _ in rows)
        table = [s.blocks + [0] * (width - len(s.blocks)) for s, _ in rows]
        lengths = [sequence.num_cached for sequence, _ in rows]

        def tensor(values: object, dtype: torch.dtype) -> torch.Tensor:
            return torch.tensor(values, dtype=dtype, device=self.device)

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


def rows_of(sequences: Sequence[CachedSequence]) -> list[np.ndarray]:
    return [torch.stack(sequence.logprobs[:-1]).numpy() for sequence in sequences]


def alone(harness: Harness, prompts):
    """Runs each sequence in one step of its own."""
    sequences = [CachedSequence() for _ in prompts]
    for sequence, ids in zip(sequences, prompts, strict=True):
        harness.step([(sequence, ids)])
    return rows_of(sequences)


def batched(harness: Harness, prompts):
    """Runs all sequences, of mixed lengths, in one step."""
    sequences = [CachedSequence() for _ in prompts]
    harness.step(list(zip(sequences, prompts, strict=True)))
    return rows_of(sequences)


def chunked(harness: Harness, prompts, chunk: int = 7):
    """Runs chunks of all sequences until the longest is complete."""
    sequences = [CachedSequence() for _ in prompts]
    for begin in range(0, max(map(len, prompts)), chunk):
        parts = [(s, ids[begin : begin + chunk]) for s, ids in zip(sequences, prompts, strict=True)]
        harness.step([(s, ids) for s, ids in parts if ids])
    return rows_of(sequences)


def decode(harness: Harness, prompts):
    """Runs all sequences token by token."""
    return chunked(harness, prompts, chunk=1)


def prefix_cached(harness: Harness, prompts):
    """Runs each sequence twice; the second run shares the full blocks of the first."""
    sequences = []
    for ids in prompts:
        donor = CachedSequence()
        harness.step([(donor, ids)])
        shared = (len(ids) - 1) // BLOCK_SIZE
        reader = CachedSequence(
            blocks=donor.blocks[:shared],
            num_cached=shared * BLOCK_SIZE,
            logprobs=donor.logprobs[: shared * BLOCK_SIZE],
        )
        harness.step([(reader, ids[shared * BLOCK_SIZE :])])
        sequences.append(reader)
    return rows_of(sequences)


def mixed(harness: Harness, prompts):
    """Decodes one sequence while the others are prefilled in chunks of different sizes."""
    sequences = [CachedSequence() for _ in prompts]
    todo = [list(ids) for ids in prompts]
    sizes = [1, 5, 16, 11]
    while any(todo):
        rows = []
        for index, sequence in enumerate(sequences):
            size = sizes[index % len(sizes)]
            part, todo[index] = todo[index][:size], todo[index][size:]
            if part:
                rows.append((sequence, part))
        harness.step(rows)
    return rows_of(sequences)


def decoded_at_length(harness: Harness, prompts, num_decoded: int = 24):
    """Prefills all but the last tokens in one step, then decodes all sequences together.

    Prompt rows report only the token that came next, so that the gate's means are of decode steps.
    """
    sequences = [CachedSequence() for _ in prompts]
    heads = [ids[:-num_decoded] for ids in prompts]
    harness.step(list(zip(sequences, heads, strict=True)))
    for index in range(-num_decoded, 0):
        harness.step([(s, [ids[index]]) for s, ids in zip(sequences, prompts, strict=True)])
    rows = rows_of(sequences)
    for logprobs, ids in zip(rows, prompts, strict=True):
        prompt_rows = len(ids) - num_decoded
        logprobs[:prompt_rows] = next_token_only(logprobs[:prompt_rows], ids)
    return rows


PATHS = {path.__name__: path for path in (alone, batched, chunked, decode, prefix_cached, mixed)}


@pytest.fixture(params=list(PATHS))
def way(request):
    """Returns one way to run sequences through a model."""
    return PATHS[request.param]


@pytest.fixture
def ways():
    return PATHS


@pytest.fixture
def long_way():
    """Returns a way for sequences that a decode kernel splits among several tasks."""
    return decoded_at_length


@pytest.fixture
def harness():
    return Harness


@pytest.fixture(scope="session")
def prompts() -> list[list[int]]:
    """Returns sequences of odd and even lengths, on both sides of block boundaries."""
    generator = torch.Generator().manual_seed(7)
    return [torch.randint(320, (n,), generator=generator).tolist() for n in (33, 2, 16, 50)]


@pytest.fixture(scope="session")
def long_prompts() -> list[list[int]]:
    """Returns sequences of 717 and 270 tokens; decode kernels split a sequence after 256."""
    generator = torch.Generator().manual_seed(11)
    return [torch.randint(320, (n,), generator=generator).tolist() for n in (717, 270)]


@pytest.fixture(scope="session")
def long_shape() -> TinyCheckpoint:
    return TinyCheckpoint(name="gqa2-d64-long", tie_word_embeddings=False, max_position=1024)
