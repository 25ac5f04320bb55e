"""Measures a checkpoint on held-out fills and on questions written by hand."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random

import torch
from tokenizers import Tokenizer
from transformers import Qwen3ForCausalLM

from .curriculum import CURRICULUM, question, talk
from .dataset import Dataset
from .grammar import load
from .lessons import Message
from .tokenizer import END, END_OF_TEXT, Renderer
from .train import weighted_loss

_SEED = 7
_QUESTIONS = 100
_MAX_TOKENS = 160
_SHORT = 64
_LOSS_BATCHES = 40
_SHOWN = (
    "Hello!",
    "Hi there",
    "What is OpenInfer?",
    "Who are you?",
    "Tell me a story.",
    "How do I start the server?",
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model said: text, tokens with the end, and whether it ended itself."""

    text: str
    num_tokens: int
    has_ended: bool


class Speaker:
    """Asks a checkpoint, greedily or as its generation_config.json says."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.model = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self._sampling = json.loads((folder / "generation_config.json").read_text())
        self._renderer = Renderer()
        self._end = self.tokenizer.token_to_id(END)
        self._pad = self.tokenizer.token_to_id(END_OF_TEXT)

    def answer(self, talks: list[list[Message]], *, is_greedy: bool) -> list[Answer]:
        """The answers to `talks`, each of which ends with a user's turn."""
        prompts = [
            self.tokenizer.encode(self._renderer.render(talk, add_generation_prompt=True)).ids
            for talk in talks
        ]
        width = max(map(len, prompts))
        padded = [[self._pad] * (width - len(ids)) + ids for ids in prompts]
        mask = [[0] * (width - len(ids)) + [1] * len(ids) for ids in prompts]
        sampling = {key: self._sampling[key] for key in ("temperature", "top_p")}
        output = self.model.generate(
            input_ids=torch.tensor(padded),
            attention_mask=torch.tensor(mask),
            max_new_tokens=_MAX_TOKENS,
            do_sample=not is_greedy,
            eos_token_id=[self._end, self._pad],
            pad_token_id=self._pad,
            **(dict.fromkeys(sampling) if is_greedy else sampling),
        )
        return [self._read(row) for row in output[:, width:].tolist()]

    def _read(self, row: list[int]) -> Answer:
        ends = (self._end, self._pad)
        count = next((n for n, token in enumerate(row, 1) if token in ends), len(row))
        text = self.tokenizer.decode(row[:count], skip_special_tokens=True)
        return Answer(text, count, row[count - 1] == self._end)


@torch.inference_mode()
def evaluate(folder: Path) -> str:
    """A report in Markdown: held-out loss, a row per family of talk, probes and samples."""
    torch.manual_seed(_SEED)
    speaker = Speaker(folder)
    loss = _loss(speaker)
    return "\n".join(
        [
            f"Held-out loss {loss:.3f} nat per token (perplexity {math.exp(loss):.2f}).",
            "",
            *_families(speaker),
            "",
            *_probes(speaker),
            "",
            *_shown(speaker),
        ]
    )


def _families(speaker: Speaker) -> list[str]:
    words = _vocabulary()
    lines = [
        f"| held-out | asked | right | right, sampled | ended in {_SHORT} | ended | sentences |",
        "|---|---|---|---|---|---|---|",
    ]
    totals = [0] * 7
    for index, (lesson, _) in enumerate(CURRICULUM):
        rng = Random(f"{_SEED}/{index}")
        asked = [question(lesson, "held-out", rng) for _ in range(_QUESTIONS)]
        talks, accepted = [messages for messages, _ in asked], [draw.accepted for _, draw in asked]
        greedy = speaker.answer(talks, is_greedy=True)
        sampled = speaker.answer(talks, is_greedy=False)
        row = [
            len(asked),
            sum(map(bool, accepted)),
            sum(answer.text in right for answer, right in zip(greedy, accepted, strict=True)),
            sum(answer.text in right for answer, right in zip(sampled, accepted, strict=True)),
            sum(answer.has_ended and answer.num_tokens <= _SHORT for answer in greedy),
            sum(answer.has_ended for answer in greedy),
            sum(_is_english(answer.text, words) for answer in greedy),
        ]
        totals = [total + value for total, value in zip(totals, row, strict=True)]
        lines.append(_row(lesson.name, row))
    return [*lines, _row("all", totals)]


def _row(name: str, row: list[int]) -> str:
    asked, checked, *counts = row
    shares = [
        f"{100 * count / of:.1f} %" if of else "-"
        for count, of in zip(counts, (checked, checked, asked, asked, asked), strict=True)
    ]
    return f"| {name} | {asked} | {' | '.join(shares)} |"


def _probes(speaker: Speaker) -> list[str]:
    probes: list[list[str]] = load("probes")["questions"]
    answers = speaker.answer([_ask(text) for text, _ in probes], is_greedy=True)
    missed = [
        f"- {text} -> {answer.text}"
        for (text, pattern), answer in zip(probes, answers, strict=True)
        if not re.search(pattern, answer.text)
    ]
    found = len(probes) - len(missed)
    return [f"Written by hand: {found} of {len(probes)} sensible. Missed:", "", *missed]


def _shown(speaker: Speaker) -> list[str]:
    lines = ["| user | greedy | sampled |", "|---|---|---|"]
    talks = [_ask(text) for text in _SHOWN]
    greedy = speaker.answer(talks, is_greedy=True)
    sampled = speaker.answer(talks, is_greedy=False)
    for text, one, other in zip(_SHOWN, greedy, sampled, strict=True):
        lines.append(f"| {text} | {one.text} | {other.text} |")
    return lines


def _ask(text: str) -> list[Message]:
    return [{"role": "user", "content": text}]


def _loss(speaker: Speaker) -> float:
    batches = islice(Dataset(speaker.tokenizer, "held-out", _SEED, 2048), _LOSS_BATCHES)
    losses = [weighted_loss(speaker.model, ids, weights).item() for ids, weights in batches]
    return sum(losses) / len(losses)


def _vocabulary() -> set[str]:
    rng = Random(_SEED)
    text = " ".join(str(turn["content"]) for _ in range(5000) for turn in talk("train", rng))
    return set(_words(text))


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z][a-z'-]*", text.lower())


def _is_english(text: str, words: set[str]) -> bool:
    """Known words only, capital first, full stop last: necessary, not sufficient."""
    is_sentence = text[:1].isupper() and text.endswith((".", "!", "?"))
    return is_sentence and all(word in words for word in _words(text))
