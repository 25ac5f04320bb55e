"""Batches of token ids with a weight for every token, made as they are needed."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import torch
from tokenizers import Tokenizer

from .curriculum import plain_story, talk
from .lessons import Split
from .tokenizer import END, END_OF_TEXT, START, Renderer

# The user's words teach the language a little; the assistant's words are what must be right.
OTHER_WEIGHT = 0.1

_POOL_TALKS = 1024
MAX_TOKENS = 1024


class Dataset:
    """An endless, seeded stream of padded batches.

    A batch holds talks of similar length, one per row, so that no talk sees another.
    """

    def __init__(self, tokenizer: Tokenizer, split: Split, seed: int, batch_tokens: int) -> None:
        self._tokenizer = tokenizer
        self._split = split
        self._rng = Random(f"{seed}/{split}")
        self._batch_tokens = batch_tokens
        self._renderer = Renderer()
        self._pad = tokenizer.token_to_id(END_OF_TEXT)
        self._end = tokenizer.token_to_id(END)
        self._start = tokenizer.encode(f"{START}assistant\n").ids

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yields `token_ids [B, T] int64` and the `weights [B, T] float32` of each as a target."""
        while True:
            pool = [self._sample() for _ in range(_POOL_TALKS)]
            pool.sort(key=lambda sample: len(sample[0]))
            batches = list(self._batches(pool))
            self._rng.shuffle(batches)
            yield from batches

    def weigh(self, ids: list[int]) -> list[float]:
        """The weight of each token: one inside the assistant's turns up to `<|im_end|>`."""
        weights = [OTHER_WEIGHT] * len(ids)
        position, width = 0, len(self._start)
        while position < len(ids):
            if ids[position : position + width] != self._start:
                position += 1
                continue
            position += width
            while position < len(ids):
                weights[position] = 1.0
                position += 1
                if ids[position - 1] == self._end:
                    break
        return weights

    def _sample(self) -> tuple[list[int], list[float]]:
        story = plain_story(self._split, self._rng)
        if story is not None:
            ids = self._tokenizer.encode(story + END_OF_TEXT).ids
            return ids, [1.0] * len(ids)
        text = self._renderer.render(talk(self._split, self._rng))
        ids = self._tokenizer.encode(text).ids[:MAX_TOKENS]
        return ids, self.weigh(ids)

    def _batches(
        self, pool: list[tuple[list[int], list[float]]]
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        rows: list[tuple[list[int], list[float]]] = []
        for sample in pool:
            if rows and (len(rows) + 1) * len(sample[0]) > self._batch_tokens:
                yield self._pad_rows(rows)
                rows = []
            rows.append(sample)
        yield self._pad_rows(rows)

    def _pad_rows(
        self, rows: list[tuple[list[int], list[float]]]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        width = max(len(ids) for ids, _ in rows)
        token_ids = torch.full((len(rows), width), self._pad)
        weights = torch.zeros(len(rows), width)
        for row, (ids, row_weights) in enumerate(rows):
            token_ids[row, : len(ids)] = torch.tensor(ids)
            weights[row, : len(ids)] = torch.tensor(row_weights)
        return token_ids, weights
