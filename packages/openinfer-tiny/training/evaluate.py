"""Measures a checkpoint on held-out fills, with tools that run, and on handwritten questions."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random

import torch

from .calculation import PYTHON, Arithmetic, Clock, FollowUp, MoreArithmetic
from .calendar_and_units import Dates, Units
from .copying import Copying
from .curriculum import Conversation, question
from .dataset import Dataset
from .grammar import load
from .json_answers import JsonAnswers, JsonResults
from .lessons import Draw, Lesson
from .memory import Memory
from .project import Project
from .refusals import Ability, Without
from .shell import SHELL, Shell
from .speaker import Speaker, Turn
from .stories import Stories
from .talk import Facts, Talk, World
from .tools import definitions
from .train import weighted_loss

_SEED = 7
_LOSS_BATCHES = 40
_MISSED_CHARS = 160
_BOTH = frozenset({PYTHON, SHELL})
_SHOWN = (
    "Hello!",
    "What is OpenInfer?",
    "Who are you?",
    "Tell me a story.",
    "What is 1234 * 5678?",
    "How many days are there between 2024-02-11 and 2025-07-30?",
    "What files are here?",
)
_SHOWN_FILES = {"notes.txt": "Buy milk.\nCall Anna.\n", "main.py": "print(1)\n"}


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the report: a family, and how it is asked."""

    name: str
    lesson: Lesson
    given: frozenset[str] = frozenset()
    max_before: int = 0


def rows() -> list[Row]:
    """Every line of the report, in order."""
    signs = {"add": "+", "subtract": "-", "multiply": "x", "divide": "÷"}
    talks: list[Lesson] = [
        *map(Talk, ("greetings", "feelings", "self", "limits", "nonsense")),
        *map(Facts, ("concepts", "how-to")),
        *(Project(), World(), Memory(), Stories(), Copying(), JsonAnswers()),
    ]
    return [
        *(Row(lesson.name, lesson) for lesson in talks),
        *(Row(f"{lesson.name}, tools given", lesson, _BOTH) for lesson in (talks[2], talks[5])),
        *(
            Row(f"{sign}, {digits} digits", Arithmetic((kind,), digits))
            for kind, sign in signs.items()
            for digits in (2, 3, 4)
        ),
        Row(
            "÷ to digits, exactly, remainder",
            Arithmetic(("divide to digits", "divide exactly", "remainder")),
        ),
        Row("more arithmetic", MoreArithmetic()),
        Row("follow-ups", FollowUp()),
        *(
            Row(f"dates: {kind}", Dates((kind,)))
            for kind in ("between", "after", "before", "weekday")
        ),
        Row("clock", Clock()),
        *(Row(Units(i).pairs[0], Units(i)) for i in range(len(Units().pairs))),
        Row("json results", JsonResults()),
        *(Row(f"shell: {kind}", Shell((kind,))) for kind in Shell().kinds),
        *(
            Row(f"{lesson.name}, both tools, talk before", lesson, _BOTH, max_before=4)
            for lesson in (Arithmetic(), Dates(), Units(), Shell())
        ),
        *(
            Row(f"{lesson.name} without {tool}", Without(lesson, tool), given)
            for lesson, tool, given in (
                (Arithmetic(), PYTHON, frozenset[str]()),
                (Dates(), PYTHON, frozenset({SHELL})),
                (Shell(), SHELL, frozenset({PYTHON})),
            )
        ),
        *(
            Row(ability.name, ability)
            for tool in (PYTHON, SHELL)
            for ability in (Ability(tool, is_given=True), Ability(tool, is_given=False))
        ),
    ]


@torch.inference_mode()
def evaluate(folder: Path, device: torch.device, num_questions: int) -> str:
    """A report in Markdown: held-out loss, a line per family, handwritten questions, samples."""
    torch.manual_seed(_SEED)
    speaker = Speaker(folder, device)
    loss = _loss(speaker)
    return "\n".join(
        [
            f"Held-out loss {loss:.3f} nat per token (perplexity {math.exp(loss):.2f}).",
            "",
            *_families(speaker, num_questions),
            "",
            *_probes(speaker),
            "",
            *_shown(speaker),
        ]
    )


def is_right(drawn: Draw, turn: Turn) -> bool | None:
    """Whether the last answer is one of the right ones, names in any order; None if unknown.

    A family without a list of right answers whose tool says something new every time, such as the
    time, is right if the answer holds what the tool said.
    """
    final = turn.final
    if not drawn.accepted:
        calls_tool = any(message["role"] == "tool" for message in drawn.opening)
        return any(text and text in final for text in turn.responses) if calls_tool else None
    for where in (str(Path(turn.folder).resolve()), turn.folder):
        final = final.replace(where, drawn.results[0] if drawn.results else "")
    return _bag(final) in map(_bag, drawn.accepted)


def _bag(text: str) -> list[str]:
    """The words of a text in sorted order; finding files lists them in any."""
    return sorted(word.strip(",.:") for word in text.split()) + sorted(re.findall(r"\n", text))


def ask_rows(
    speaker: Speaker, asked: Iterable[Row], num_questions: int, *, is_greedy: bool
) -> list[list[tuple[Draw, Turn]]]:
    """For each row, its questions with what the model made of them."""
    drawn: list[list[tuple[Draw, Turn]]] = []
    for row in asked:
        rng = Random(f"{_SEED}/{row.name}")
        drawn.append([])
        for _ in range(num_questions):
            num_before = rng.randint(1, row.max_before) if row.max_before else 0
            asks, draw = question(
                row.lesson, "held-out", rng, given=row.given, num_before=num_before
            )
            drawn[-1].append((draw, Turn(asks, draw.files)))
    speaker.converse([turn for group in drawn for _, turn in group], is_greedy=is_greedy)
    return drawn


def _families(speaker: Speaker, num_questions: int) -> list[str]:
    lines = [
        "| held-out | asked | valid calls | right | ended | valid calls, sampled | right, sampled "
        "| ended, sampled |",
        "|---|---|---|---|---|---|---|---|",
    ]
    asked = rows()
    greedy = ask_rows(speaker, asked, num_questions, is_greedy=True)
    sampled = ask_rows(speaker, asked, num_questions, is_greedy=False)
    for row, one, other in zip(asked, greedy, sampled, strict=True):
        lines.append(f"| {row.name} | {len(one)} | {_shares(one)} | {_shares(other)} |")
    for name, chosen in (("calls needed", True), ("no call needed", False), ("all", None)):
        members = [index for index, row in enumerate(asked) if chosen in (None, _calls(row))]
        one = [pair for index in members for pair in greedy[index]]
        other = [pair for index in members for pair in sampled[index]]
        lines.append(f"| **{name}** | {len(one)} | {_shares(one)} | {_shares(other)} |")
    return lines


def _calls(row: Row) -> bool:
    return bool(row.lesson.needs) and not isinstance(row.lesson, Ability)


def _shares(pairs: list[tuple[Draw, Turn]]) -> str:
    """Valid calls, right last answers and ended turns, in percent."""
    calls = [has_valid_calls(drawn, turn) for drawn, turn in pairs]
    rights = [right for drawn, turn in pairs if (right := is_right(drawn, turn)) is not None]
    ended = [turn.has_ended for _, turn in pairs]
    return " | ".join(
        f"{100 * sum(values) / len(values):.1f} %" if values else "-"
        for values in (calls, rights, ended)
    )


def has_valid_calls(drawn: Draw, turn: Turn) -> bool:
    """Whether the model called validly where a call is needed, and not at all where none is."""
    last = max(i for i, message in enumerate(drawn.opening) if message["role"] == "user")
    if not any(message["role"] == "tool" for message in drawn.opening[last:]):
        return turn.num_calls == 0
    return 0 < turn.num_calls == turn.num_valid_calls


def _probes(speaker: Speaker) -> list[str]:
    lines = []
    for name, given in (("questions", frozenset[str]()), ("tool-questions", _BOTH)):
        probes: list[list[str]] = load("probes")[name]
        turns = [Turn(_ask(text, given), _SHOWN_FILES) for text, _ in probes]
        speaker.converse(turns, is_greedy=True)
        missed = [
            f"- {text} -> {' '.join(answer.text for answer in turn.answers)[-_MISSED_CHARS:]!r}"
            for (text, pattern), turn in zip(probes, turns, strict=True)
            if not re.search(pattern, turn.final)
        ]
        found = len(probes) - len(missed)
        lines += [f"Written by hand, {name}: {found} of {len(probes)} sensible. Missed:", ""]
        lines += [*missed, ""]
    return lines


def _shown(speaker: Speaker) -> list[str]:
    lines = ["| user | greedy | sampled |", "|---|---|---|"]
    greedy, sampled = ([Turn(_ask(text, _BOTH), _SHOWN_FILES) for text in _SHOWN] for _ in range(2))
    speaker.converse(greedy, is_greedy=True)
    speaker.converse(sampled, is_greedy=False)
    for text, *turns in zip(_SHOWN, greedy, sampled, strict=True):
        said = (" -> ".join(answer.text for answer in turn.answers) for turn in turns)
        lines.append(f"| {text} | {' | '.join(said)} |".replace("\n", " "))
    return lines


def _ask(text: str, given: frozenset[str]) -> Conversation:
    tools = definitions(given, Random(_SEED)) if given else []
    return Conversation([{"role": "user", "content": text}], tools)


def _loss(speaker: Speaker) -> float:
    batches = islice(Dataset(speaker.tokenizer, "held-out", str(_SEED), 4096), _LOSS_BATCHES)
    device = speaker.model.device
    losses = [
        weighted_loss(
            speaker.model,
            torch.from_numpy(ids).to(device).long(),
            torch.from_numpy(weights).to(device).float(),
        ).item()
        for ids, weights in batches
    ]
    return sum(losses) / len(losses)
