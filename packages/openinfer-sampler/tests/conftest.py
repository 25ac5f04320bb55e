"""Requests and draws for the tests of the sampler."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from openinfer_contract import (
    GenerateRequest,
    LogprobOptions,
    Sampling,
    StopRules,
    TokenLogprobs,
    pack_ids,
    unpack_floats,
    unpack_ids,
)
from openinfer_sampler import HostTokens, Sampler


def _request(
    *,
    prompt=(1, 2, 3),
    num_output_prefix=0,
    logprobs: LogprobOptions | None = None,
    max_tokens=64,
    min_tokens=0,
    stop_token_ids=(),
    ignore_eos=False,
    **sampling,
) -> GenerateRequest:
    return GenerateRequest(
        request_id="r",
        prompt_token_ids=pack_ids(prompt),
        num_output_prefix=num_output_prefix,
        stop=StopRules(
            max_tokens=max_tokens,
            min_tokens=min_tokens,
            stop_token_ids=stop_token_ids,
            ignore_eos=ignore_eos,
        ),
        sampling=Sampling(**sampling),
        logprobs=logprobs,
    )


@pytest.fixture
def request_of() -> Callable[..., GenerateRequest]:
    return _request


@pytest.fixture
def draw() -> Callable[..., HostTokens]:
    """Returns `draw(logits, [dict, ...])`: draws from [n, vocab], each row with its parameters."""

    def run(logits, rows, *, positions=None, seeds=None, masks=None, eos=(), slots=None):
        num_rows, vocab_size = logits.shape
        slots = np.arange(num_rows) if slots is None else np.asarray(slots)
        sampler = Sampler(
            num_slots=int(slots.max()) + 1,
            vocab_size=vocab_size,
            device="cpu",
            eos_token_ids=eos,
        )
        for row, (slot, parameters) in enumerate(zip(slots, rows, strict=True)):
            seed = row if seeds is None else seeds[row]
            sampler.set(int(slot), _request(**parameters), seed=seed)
        positions = torch.arange(num_rows) if positions is None else torch.tensor(positions)
        sampled = sampler.sample(logits, slots, positions, masks=masks)
        return sampled.unpack(sampled.packed.numpy())

    return run


@pytest.fixture
def columns() -> Callable[[TokenLogprobs], dict[str, list]]:
    def unpack(logprobs):
        return {
            "sampled": unpack_floats(logprobs.sampled),
            "ranks": unpack_ids(logprobs.ranks),
            "top_ids": unpack_ids(logprobs.top_ids),
            "top": unpack_floats(logprobs.top),
            "by_id": unpack_floats(logprobs.by_id),
        }

    return unpack
