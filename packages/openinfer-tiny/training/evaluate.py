"""Evaluation of a checkpoint on held-out and handwritten questions, with tools that run."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import torch

from .curriculum import Conversation, question
from .dataset import Dataset
from .grammar import load
from .lessons import Draw, holds
from .pins import libraries, text_digest
from .questions import BOTH, Row, rows
from .speaker import Speaker, Turn, calls_of, outside_calls
from .tools import definitions
from .train import weighted_loss
from .wordings import Wordings, training_wordings, wordings_of

_SEED = 7
_LOSS_BATCHES = 10
_LOSS_BATCH_TOKENS = 4096
_WORDING_DRAWS = 20_000
_MISSED_CHARS = 160
_FILES = {"notes.txt": "Buy milk.\nCall Anna.\n", "main.py": "print(1)\n"}

Asked = list[tuple[Draw, Turn]]
Report = dict[str, Any]


@torch.inference_mode()
def evaluate(folder: Path, device: torch.device, num_questions: int) -> Report:
    """Asks `num_questions` of every family, greedily and sampled, and reports counts.

    Questions worded like training text (`wordings.py`) are drawn but not asked. The report consists
    of JSON values; `card.py` makes a table of it.
    """
    started = time.process_time()
    torch.manual_seed(_SEED)
    speaker = Speaker(folder, device)
    known = training_wordings(_WORDING_DRAWS, _SEED)
    asked = rows()
    greedy = ask_rows(speaker, asked, num_questions, is_greedy=True, known=known)
    sampled = ask_rows(speaker, asked, num_questions, is_greedy=False, known=known)
    return {
        **_setting(folder, speaker),
        "seed": _SEED,
        "drawn_per_family": num_questions,
        "training_draws_per_family_compared": _WORDING_DRAWS,
        "held_out_loss": _loss(speaker),
        "families": [
            {
                "name": row.name,
                "line": row.line or row.name,
                "needs_call": row.needs_call,
                "worded_as_training": num_questions - len(one),
                "greedy": _counts(one),
                "sampled": _counts(other),
            }
            for row, one, other in zip(asked, greedy, sampled, strict=True)
        ],
        "by_hand": [
            _by_hand(speaker, "questions", frozenset()),
            _by_hand(speaker, "tool-questions", BOTH),
        ],
        "cpu_s": round(time.process_time() - started),
    }


def is_right(drawn: Draw, turn: Turn) -> bool | None:
    """Returns whether the last answer equals an accepted one; None if it cannot be rated.

    Names listed by `find` may come in any order. If the tool's output differs every time, such as
    the time of day, there are no accepted answers, and the answer must contain the output.
    """
    final = turn.final
    if not drawn.accepted:
        calls_tool = any(message["role"] == "tool" for message in drawn.opening)
        return any(text and text in final for text in turn.responses) if calls_tool else None
    for where in (str(Path(turn.folder).resolve()), turn.folder):
        final = final.replace(where, drawn.results[0] if drawn.results else "")
    if drawn.is_listing:
        return _bag(final) in map(_bag, drawn.accepted)
    return final in drawn.accepted


def _bag(text: str) -> list[str]:
    """Returns the words of a listing in sorted order."""
    return sorted(word.strip(",.:") for word in text.split()) + sorted(re.findall(r"\n", text))


def has_valid_calls(drawn: Draw, turn: Turn) -> bool:
    """Returns whether the model made valid calls if a call is needed, and none otherwise."""
    last = max(i for i, message in enumerate(drawn.opening) if message["role"] == "user")
    if not any(message["role"] == "tool" for message in drawn.opening[last:]):
        return turn.num_calls == 0
    return 0 < turn.num_calls == turn.num_valid_calls


def says_beforehand(drawn: Draw, turn: Turn) -> bool:
    """Returns whether the model wrote a result, in text or a call, before a tool returned it.

    The recipe's own calls do not count, because they need some results as constants, such as 1000
    for one kilometre in metres.
    """
    heard = "\n".join(str(message["content"]) for message in turn.talk.messages)
    expected = [_code(call["function"]["arguments"]) for call in _calls(drawn)]
    responses = iter(turn.responses)
    for answer in turn.answers:
        calls = calls_of(answer.text, turn.talk.tools)
        codes = [_code(call["arguments"]) for call in calls if call is not None]
        own = [code for code in codes if code not in expected]
        is_told = [outside_calls(answer.text) if len(codes) == len(calls) else answer.text, *own]
        for result in drawn.results:
            is_early = any(holds(text, result) for text in is_told)
            if result and is_early and not holds(heard, result):
                return True
        heard = "\n".join([heard, *islice(responses, len(calls))])
    return False


def _calls(drawn: Draw) -> list[Any]:
    """Returns the calls that the recipe expects."""
    found: list[Any] = [message.get("tool_calls") or () for message in drawn.opening]
    return [call for calls in found for call in calls]


def _code(arguments: object) -> str:
    """Returns the code or command of a call."""
    given = json.loads(arguments) if isinstance(arguments, str) else arguments
    (text,) = given.values()
    return str(text)


def ask_rows(
    speaker: Speaker,
    asked: Iterable[Row],
    num_questions: int,
    *,
    is_greedy: bool,
    known: Wordings | None = None,
) -> list[Asked]:
    """Asks the questions of each row that are not worded as `known`; returns them and the turns."""
    drawn = [draw_questions(row, num_questions, known) for row in asked]
    speaker.converse([turn for group in drawn for _, turn in group], is_greedy=is_greedy)
    return drawn


def draw_questions(row: Row, num_questions: int, known: Wordings | None = None) -> Asked:
    """Draws `num_questions` held-out questions and removes those worded as `known`."""
    rng = Random(f"{_SEED}/{row.name}")
    drawn: Asked = []
    for _ in range(num_questions):
        num_before = rng.randint(1, row.max_before) if row.max_before else 0
        asks, draw = question(row.lesson, "held-out", rng, given=row.given, num_before=num_before)
        if known is None or not any(map(known.holds, wordings_of(draw))):
            drawn.append((draw, Turn(asks, draw.files)))
    return drawn


def _counts(pairs: Asked) -> dict[str, Any]:
    """Counts the turns: asked, valid calls, results said too early, ended, rated, right.

    The wrong ones are listed with the ends of question and answer.
    """
    rated = [
        (draw, turn, right) for draw, turn in pairs if (right := is_right(draw, turn)) is not None
    ]
    wrong = [turn for _, turn, right in rated if not right]
    return {
        "asked": len(pairs),
        "valid_calls": sum(has_valid_calls(*pair) for pair in pairs),
        "said_beforehand": sum(says_beforehand(*pair) for pair in pairs),
        "ended": sum(turn.has_ended for _, turn in pairs),
        "rated": len(rated),
        "right": len(rated) - len(wrong),
        "wrong": [
            [
                str(turn.talk.messages[-1]["content"])[-_MISSED_CHARS:],
                turn.final.replace(turn.folder, ".")[-_MISSED_CHARS:],
            ]
            for turn in wrong
        ],
    }


def _by_hand(speaker: Speaker, name: str, given: frozenset[str]) -> dict[str, Any]:
    probes: list[list[str]] = load("probes")[name]
    tools = definitions(given, Random(_SEED)) if given else []
    turns = [
        Turn(Conversation([{"role": "user", "content": text}], tools), _FILES) for text, _ in probes
    ]
    speaker.converse(turns, is_greedy=True)
    missed = [
        [text, " ".join(answer.text for answer in turn.answers)[-_MISSED_CHARS:]]
        for (text, pattern), turn in zip(probes, turns, strict=True)
        if not re.search(pattern, turn.final)
    ]
    return {
        "name": name,
        "asked": len(probes),
        "sensible": len(probes) - len(missed),
        "missed": missed,
    }


def _loss(speaker: Speaker) -> dict[str, Any]:
    batches = Dataset(speaker.tokenizer, "held-out", str(_SEED), _LOSS_BATCH_TOKENS)
    device = speaker.model.device
    losses = [
        weighted_loss(
            speaker.model,
            torch.from_numpy(ids).to(device).long(),
            torch.from_numpy(weights).to(device).float(),
        ).item()
        for ids, weights in islice(batches, _LOSS_BATCHES)
    ]
    return {
        "nats_per_token": round(sum(losses) / len(losses), 4),
        "batches": _LOSS_BATCHES,
        "batch_tokens": _LOSS_BATCH_TOKENS,
        "dtype": "float32, autocast to bfloat16",
    }


def _setting(folder: Path, speaker: Speaker) -> dict[str, Any]:
    weights = (folder / "model.safetensors").read_bytes()
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "processor": _processor(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "device": speaker.model.device.type,
        },
        "libraries": libraries(),
        "dtype": str(speaker.model.dtype).removeprefix("torch."),
        "weights_sha256": hashlib.sha256(weights).hexdigest(),
        "text_digest": text_digest(),
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    found = cpuinfo.is_file() and re.search(r"model name\s*: (.*)", cpuinfo.read_text())
    return found[1] if found else platform.processor()
