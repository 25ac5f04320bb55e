"""Endless batches of token ids, with a loss weight for every token."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from .curriculum import plain_story, talk
from .lessons import Split
from .tokenizer import END, END_OF_TEXT, RESPONSE, RESPONSE_END, START, Renderer

# User turns have a small weight, for language; the assistant's turns have full weight.
OTHER_WEIGHT = 0.1

MAX_TOKENS = 1024
# A few shapes only, so that a GPU's allocator and libraries can reuse their choices.
_WIDTHS = (32, 48, 64, 96, 128, 192, 256, 320, 384, 448, 512, 640, 768, 896, MAX_TOKENS)
Sample = tuple[list[int], list[float]]
Batch = tuple[NDArray[np.int16], NDArray[np.float16]]


class Dataset:
    """An endless, seeded stream of padded batches.

    A batch has talks of similar length, one per row, so no talk attends to another. Its width is
    one of a few, and it has as many rows as `batch_tokens` allows.
    """

    def __init__(self, tokenizer: Tokenizer, split: Split, seed: str, batch_tokens: int) -> None:
        self._tokenizer = tokenizer
        self._split = split
        self._rng = Random(f"{seed}/{split}")
        self._batch_tokens = batch_tokens
        self._renderer = Renderer()
        self._pad = tokenizer.token_to_id(END_OF_TEXT)
        self._end = tokenizer.token_to_id(END)
        self._start = tokenizer.encode(f"{START}assistant\n").ids
        self._response = tokenizer.token_to_id(RESPONSE)
        self._response_end = tokenizer.token_to_id(RESPONSE_END)

    def __iter__(self) -> Iterator[Batch]:
        """Yields `token_ids [B, T] int16` and their `weights [B, T] float16` as targets."""
        rows: dict[int, list[Sample]] = {width: [] for width in _WIDTHS}
        while True:
            sample = self._sample()
            width = next(width for width in _WIDTHS if len(sample[0]) <= width)
            rows[width].append(sample)
            if len(rows[width]) == max(1, self._batch_tokens // width):
                yield self._pad_rows(rows[width], width)
                rows[width] = []

    def weigh(self, ids: list[int]) -> list[float]:
        """Returns the weight of each token as a target.

        It is 1 in the assistant's turns, up to `<|im_end|>`, and 0 in a tool's response: learning
        to predict responses would teach the model to make up results.
        """
        weights = [OTHER_WEIGHT] * len(ids)
        position, width = 0, len(self._start)
        while position < len(ids):
            if ids[position] == self._response:
                while position < len(ids) and ids[position] != self._response_end:
                    position += 1
                    if position < len(ids):
                        weights[position] = 0.0
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

    def _sample(self) -> Sample:
        story = plain_story(self._split, self._rng)
        if story is not None:
            ids = self._tokenizer.encode(story + END_OF_TEXT).ids
            return ids, [1.0] * len(ids)
        text = self._renderer.render(talk(self._split, self._rng))
        ids = self._tokenizer.encode(text).ids[:MAX_TOKENS]
        return ids, self.weigh(ids)

    def _pad_rows(self, rows: list[Sample], width: int) -> Batch:
        token_ids = np.full((len(rows), width), self._pad, np.int16)
        weights = np.zeros((len(rows), width), np.float16)
        for row, (ids, row_weights) in enumerate(rows):
            token_ids[row, : len(ids)] = ids
            weights[row, : len(ids)] = row_weights
        return token_ids, weights
