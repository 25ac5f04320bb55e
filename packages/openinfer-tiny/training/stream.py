"""Training batches that worker processes make in advance."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from multiprocessing.queues import Queue
from pathlib import Path

import torch
from tokenizers import Tokenizer

from .dataset import Batch, Dataset

_BATCHES_AHEAD = 16


@contextmanager
def training_batches(
    tokenizer_file: Path, seed: int, batch_tokens: int, num_workers: int, device: torch.device
) -> Iterator[Iterator[tuple[torch.Tensor, torch.Tensor]]]:
    """Yields an endless iterator of `token_ids [B, T] int64` and `weights [B, T] float32`.

    The tensors are on `device`. Each worker has its own seed and they take turns, so equal
    arguments give equal batches on any machine. The worker processes end with the context.
    """
    context = get_context("spawn")
    queues: list[Queue[Batch]] = [context.Queue(_BATCHES_AHEAD) for _ in range(num_workers)]
    workers: list[BaseProcess] = [
        context.Process(
            target=_work, args=(tokenizer_file, f"{seed}/{index}", batch_tokens, queue), daemon=True
        )
        for index, queue in enumerate(queues)
    ]
    for worker in workers:
        worker.start()
    try:
        yield _in_turn(queues, device)
    finally:
        for worker in workers:
            worker.terminate()
            worker.join()


def _work(tokenizer_file: Path, seed: str, batch_tokens: int, queue: Queue[Batch]) -> None:
    torch.set_num_threads(1)
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    for batch in Dataset(tokenizer, "train", seed, batch_tokens):
        queue.put(batch)


def _in_turn(
    queues: list[Queue[Batch]], device: torch.device
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    while True:
        for queue in queues:
            token_ids, weights = map(torch.from_numpy, queue.get())
            yield token_ids.to(device).long(), weights.to(device).float()
