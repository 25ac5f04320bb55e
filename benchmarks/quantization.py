"""Accuracy of int8 and int4 weights: the built-in model against transformers in float32.

    python benchmarks/quantization.py            (--record [FOLDER] writes a result)

Transformers samples answers to questions; every case is teacher-forced on them. The error is that
of logprobs, in nats: over the whole vocabulary, and of the token that follows. The perplexity is
printed too. The machine's speed and load do not change these figures.
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from openinfer_contract import unpack_ids
from openinfer_nn import CacheView, StepInputs, load_weights
from openinfer_qwen3.config import Qwen3Config
from openinfer_qwen3.model import Qwen3Model
from openinfer_testing import results
from openinfer_testing.torch import teacher_forced_logprobs
from openinfer_text import TextModel
from openinfer_tiny import CHECKPOINT

HERE = Path(__file__).parent
BLOCK_SIZE = 16
NUM_TOKENS = 128
NUM_ANSWERS = 4
QUESTIONS = (
    "Hello!",
    "What is OpenInfer?",
    "What is 123 + 456?",
    "How many days are between 2024-01-05 and 2024-03-01?",
    "Tell me a story about the sea.",
    "How many grams are 3 kilograms?",
    "Which files are here?",
    "What is a block?",
)


def answers(text: TextModel) -> list[list[int]]:
    """Returns prompts with the answers that transformers samples in float32, with a fixed seed."""
    model = AutoModelForCausalLM.from_pretrained(
        CHECKPOINT.path(), dtype=torch.float32, local_files_only=True
    )
    torch.manual_seed(0)
    found = []
    for question in QUESTIONS:
        prompt = text.encode_chat([{"role": "user", "content": question}])
        ids = torch.tensor([list(map(int, unpack_ids(prompt.token_ids)))])
        for _ in range(NUM_ANSWERS):
            drawn = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=True,
                max_new_tokens=NUM_TOKENS,
                pad_token_id=0,
            )
            found.append(drawn[0].tolist())
    return found


def logprobs(model: Qwen3Model, ids: list[int]) -> np.ndarray:
    """[len(ids) - 1, vocab_size]: row i is about token i + 1."""
    spec, count = model.cache_spec(), len(ids)
    num_blocks = -(-count // BLOCK_SIZE)
    with torch.inference_mode():
        arena = torch.zeros(num_blocks * spec.bytes_per_block(BLOCK_SIZE), dtype=torch.uint8)
        inputs = StepInputs(
            token_ids=torch.tensor(ids),
            positions=torch.arange(count),
            cu_seqlens_q=torch.tensor([0, count], dtype=torch.int32),
            seq_lens=torch.tensor([count], dtype=torch.int32),
            block_table=torch.arange(num_blocks, dtype=torch.int32).unsqueeze(0),
            slot_mapping=torch.arange(count),
            logits_indices=torch.arange(count),
            max_seqlen_q=count,
            max_seqlen_k=count,
        )
        cache = CacheView(arena, spec, block_size=BLOCK_SIZE, num_blocks=num_blocks)
        logits = model.logits(model(inputs, cache))
        return torch.log_softmax(logits[:-1].float(), dim=1).numpy()


def measure(quantization: str | None, sequences: list[list[int]], truth: Any) -> dict[str, Any]:
    folder = CHECKPOINT.path()
    config = json.loads((folder / "config.json").read_text())
    with torch.inference_mode():
        model = Qwen3Model(
            Qwen3Config.from_dict(config),
            device="cpu",
            dtype=torch.bfloat16,
            block_size=BLOCK_SIZE,
            quantization=quantization,
        )
        load_weights(folder, model, model.weight_map())
        weights = sum(parameter.nbytes for parameter in model.parameters())
    errors, forced_errors, forced = [], [], []
    for ids, expected in zip(sequences, truth, strict=True):
        got = logprobs(model, ids)
        error, rows = np.abs(got - expected), np.arange(len(ids) - 1)
        errors.append(error.ravel())
        forced_errors.append(error[rows, ids[1:]])
        forced.append(got[rows, ids[1:]])
    everything = np.concatenate(errors)
    return {
        "weights_bytes": weights,
        "mean_error": round(float(everything.mean()), 4),
        "p99_error": round(float(np.percentile(everything, 99)), 4),
        "mean_error_of_next": round(float(np.concatenate(forced_errors).mean()), 4),
        "perplexity": round(math.exp(-float(np.concatenate(forced).mean())), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    results.add_record_flag(parser)
    arguments = parser.parse_args()
    sequences = answers(TextModel.from_folder(CHECKPOINT.path()))
    truth = teacher_forced_logprobs(CHECKPOINT.path(), sequences, torch.float32)
    exact = np.concatenate(
        [rows[np.arange(len(rows)), ids[1:]] for ids, rows in zip(sequences, truth, strict=True)]
    )
    report = {
        **results.header("quantization"),
        "model": "tiny",
        "tokens": sum(len(ids) - 1 for ids in sequences),
        "float32_perplexity": round(math.exp(-float(exact.mean())), 3),
        **{
            quantization or "bf16": measure(quantization, sequences, truth)
            for quantization in (None, "int8", "int4")
        },
    }
    print(json.dumps(report, indent=2))
    if arguments.record:
        results.write(arguments.record, report)


if __name__ == "__main__":
    main()
