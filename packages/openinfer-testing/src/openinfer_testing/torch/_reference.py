"""The reference: transformers' logits and logprobs of a checkpoint."""

import gc
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoModelForCausalLM

FloatArray = npt.NDArray[np.float32]


@lru_cache(maxsize=4)
def _load(folder: Path, dtype: torch.dtype, device: str) -> Any:
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager", local_files_only=True
    )
    model.eval()  # type: ignore[no-untyped-call]
    return model.to(device)  # type: ignore[arg-type]


def release_references() -> None:
    """Drops the models that comparisons have loaded and frees their memory."""
    _load.cache_clear()
    gc.collect()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


def reference_logits(
    folder: Path, sequences: Sequence[Sequence[int]], dtype: torch.dtype, device: str = "cpu"
) -> list[FloatArray]:
    """Runs transformers (eager attention) over each sequence alone.

    Args:
        folder: A checkpoint.
        sequences: Token ids.
        dtype: Dtype of the computation; the weights are converted.
        device: Device of the computation.

    Returns:
        For each sequence [len(sequence), vocab_size], float32: row i predicts token i + 1.
    """
    model = _load(folder, dtype, device)
    with torch.inference_mode():
        return [
            np.asarray(model(torch.tensor([list(ids)], device=device)).logits[0].float().cpu())
            for ids in sequences
        ]


def teacher_forced_logprobs(
    folder: Path,
    sequences: Sequence[Sequence[int]],
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> list[FloatArray]:
    """Returns transformers' logprobs of every token at every forced position.

    Returns:
        For each sequence [len(sequence) - 1, vocab_size], float32: row i is about token i + 1.
    """
    return [
        torch.log_softmax(torch.from_numpy(logits[:-1]), dim=-1).numpy()
        for logits in reference_logits(folder, sequences, dtype, device)
    ]
