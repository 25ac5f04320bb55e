"""Time of sampling per step, in graph replay on a GPU, after a check against the reference.

    python benchmarks/sampler.py            (--record [FOLDER] writes a result)

Logits of bf16 at [1 | 32 | 64, 151936], once as a model makes them (some likely tokens over a bulk)
and once flat, drawn as captured steps draw. A graph holds one step on each of several logits
that together take twice the L2 cache, so each is read from memory. The floor is the time to read
once what a step must read, at the card's bandwidth. Goals: plain temperature at batch 1 at most
45 us over reading the logits; batch 64 with top-k, top-p and penalties at most 90 us.
"""

import argparse
import functools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from _gpu import num_cold, record, replay

from openinfer_contract import GenerateRequest, Sampling, StopRules, pack_ids
from openinfer_sampler import SampledTokens, Sampler
from openinfer_testing import results

VOCAB_SIZE = 151_936
BATCHES = (1, 32, 64)
BANDWIDTH = 4.8e12  # H200, bytes a second
NUM_BUFFERS = 8
NUM_REPLAYS = 30
NUM_CHECKED_STEPS = 3
PROMPT = tuple(range(1000, 1300))

PENALTIES = {"repetition_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": 0.2}
CASES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.7},
    "top_k": {"top_k": 20},
    "top_p": {"top_p": 0.95},
    "min_p": {"min_p": 0.05},
    "top_k+top_p": {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
    "penalties": PENALTIES,
    "top_k+top_p+penalties": {"top_k": 50, "top_p": 0.9, **PENALTIES},
    "everything": {
        "top_k": 50,
        "top_p": 0.9,
        "min_p": 0.01,
        "logit_bias": ((7, 2.0),),
        "bad_words": (pack_ids([5, 6]),),
        **PENALTIES,
    },
    "top_k 5000+top_p": {"top_k": 5000, "top_p": 0.9},
}
PLAIN = CASES["temperature"]
CASES["temperature, one row everything"] = CASES["everything"]
"""The other rows are `PLAIN`: what they pay for a neighbour."""
GOALS = {("temperature", 1): 45.0, ("top_k+top_p+penalties", 64): 90.0}


def main() -> None:
    """Checks, measures, prints and records."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    results.add_record_flag(parser)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", default="", help="cases whose names hold this")
    parser.add_argument("--commit", help="for the result, where there is no clone")
    arguments = parser.parse_args()
    cases = [name for name in CASES if arguments.only in name]
    wrong = sum(_check(name, arguments.device) for name in cases)
    rows, reads = [], {}
    if arguments.device == "cuda":
        print(f"{'case':32s}{'logits':>8s}{'batch':>7s}{'us':>9s}{'floor':>9s}{'share':>7s}  goal")
        rows = [
            _measure(name, kind, batch)
            for name in cases
            for kind in ("model", "flat")
            for batch in BATCHES
        ]
        reads = _read_once()
    if arguments.record:
        known = {"commit": arguments.commit} if arguments.commit else {}
        record(arguments.record, "sampler", rows=rows, amax_us=reads, **known)
    sys.exit(1 if wrong else 0)


def _logits(kind: str, batch: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(batch, VOCAB_SIZE, generator=generator)
    if kind == "model":
        # A bulk far below, and some hundred tokens that fall off as the ranks of a text do.
        ranks = torch.arange(300, dtype=torch.float32)
        for row in logits.mul_(2.0):
            ids = torch.randperm(VOCAB_SIZE, generator=generator)[:300]
            row[ids] = 20 - 2.5 * ranks.add(1).log()
    return logits.bfloat16()


@functools.cache
def _buffers(kind: str, batch: int) -> list[torch.Tensor]:
    few = [_logits(kind, batch, seed).cuda() for seed in range(NUM_BUFFERS)]
    return [few[i % NUM_BUFFERS].clone() for i in range(num_cold(few[0].nbytes))]


def _sampler(batch: int, name: str, device: str, backend: str) -> Sampler:
    sampler = Sampler(num_slots=batch, vocab_size=VOCAB_SIZE, device=device, backend=backend)
    for slot in range(batch):
        is_plain = slot > 0 and "one row" in name
        sampler.set(
            slot,
            GenerateRequest(
                request_id="r",
                prompt_token_ids=pack_ids(PROMPT),
                stop=StopRules(max_tokens=1000),
                sampling=Sampling(**PLAIN if is_plain else CASES[name]),
            ),
            seed=slot,
        )
    return sampler


def _step(
    sampler: Sampler, logits: torch.Tensor, position: int = len(PROMPT)
) -> Callable[[], SampledTokens]:
    slots = np.arange(len(logits))
    device_slots = torch.arange(len(logits), device=logits.device)
    positions = torch.full_like(device_slots, position)
    needs = sampler.capturable_needs(slots)
    if needs is None:
        return lambda: sampler.sample(logits, slots, positions, device_slots=device_slots)
    return lambda: sampler.draw_captured(logits, device_slots, positions, needs)


def _token_ids(sampled: SampledTokens) -> npt.NDArray[np.uint32]:
    return sampled.unpack(sampled.packed.cpu().numpy()).token_ids


def _check(name: str, device: str) -> int:
    """How many tokens differ from the reference's, beyond one in two hundred: near ties."""
    batch, num_wrong, num_drawn = 16, 0, 0
    for kind in ("model", "flat"):
        ours = _sampler(batch, name, device, "auto")
        reference = _sampler(batch, name, "cpu", "reference")
        for step in range(NUM_CHECKED_STEPS):
            logits = _logits(kind, batch, 100 + step)
            position = len(PROMPT) + step
            got = _token_ids(_step(ours, logits.to(device), position)())
            expected = _token_ids(_step(reference, logits, position)())
            num_wrong += int((got != expected).sum())
            num_drawn += batch
            if (got != expected).any():
                break  # from here on the tables differ
    verdict = "ok" if num_wrong * 200 <= num_drawn else "WRONG"
    print(f"{name:32s} {num_wrong} of {num_drawn} tokens differ from the reference: {verdict}")
    return int(verdict != "ok")


def _measure(name: str, kind: str, batch: int) -> dict[str, Any]:
    sampler = _sampler(batch, name, "cuda", "auto")
    steps = [_step(sampler, logits) for logits in _buffers(kind, batch)]
    took = 1e3 * replay(steps, NUM_REPLAYS)
    case = CASES[name]
    num_tables = ("repetition_penalty" in case) + ("logit_bias" in case)
    num_rows_with = 1 if "one row" in name else batch
    num_bytes = VOCAB_SIZE * (2 * batch + 4 * num_tables * num_rows_with)
    floor = num_bytes / BANDWIDTH * 1e6
    goal = GOALS.get((name, batch))
    goal_us = None if goal is None else goal + (floor if name == "temperature" else 0)
    verdict = "" if goal_us is None else f"{goal_us:.0f} {'met' if took <= goal_us else 'MISSED'}"
    print(
        f"{name:32s}{kind:>8s}{batch:>7d}{took:>9.1f}{floor:>9.2f}{floor / took:>7.0%}  {verdict}"
    )
    return {
        "case": name,
        "logits": kind,
        "batch": batch,
        "us": round(took, 2),
        "floor_us": round(floor, 3),
        "share": round(floor / took, 3),
        "goal_us": goal_us,
    }


def _read_once() -> dict[int, float]:
    """Returns the microseconds of only reading the logits, by batch size."""
    reads = {}
    for batch in BATCHES:
        steps = [lambda x=x: x.amax(dim=1) for x in _buffers("flat", batch)]
        reads[batch] = round(1e3 * replay(steps, NUM_REPLAYS), 2)
        print(f"torch.amax of the logits {batch:>23d}{reads[batch]:>9.1f}")
    return reads


if __name__ == "__main__":
    main()
