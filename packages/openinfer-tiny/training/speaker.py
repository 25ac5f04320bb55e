"""A runner for questions to a checkpoint, with the tools that it calls."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from tokenizers import Tokenizer
from transformers import Qwen3ForCausalLM

from .curriculum import Conversation
from .lessons import Message
from .tokenizer import END, END_OF_TEXT, Renderer
from .tools import Tool

_MAX_TOKENS = 192
_MAX_ROUNDS = 3
_TOKENS_AT_ONCE = {"cpu": 40_000, "cuda": 2_000_000}
_TOOL_TIMEOUT_S = 10
_CALL = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of the model: text, number of tokens with the end, whether the model ended it."""

    text: str
    num_tokens: int
    has_ended: bool


@dataclass(slots=True)
class Turn:
    """A question with its answers and tool calls, up to the last answer.

    Attributes:
        talk: the messages so far, and the tools.
        files: text by path, the content of the tools' folder.
        folder: folder in which the tools ran; it is deleted afterwards.
        answers: all answers of the model, including calls.
        num_calls: number of calls.
        num_valid_calls: number of calls in JSON of a given tool with its parameters.
    """

    talk: Conversation
    files: Mapping[str, str] = field(default_factory=dict)
    folder: str = ""
    answers: list[Answer] = field(default_factory=list)
    responses: list[str] = field(default_factory=list)
    num_calls: int = 0
    num_valid_calls: int = 0

    @property
    def final(self) -> str:
        """Last answer."""
        return self.answers[-1].text

    @property
    def has_ended(self) -> bool:
        """Whether the model ended every answer."""
        return all(answer.has_ended for answer in self.answers)


class Speaker:
    """A checkpoint that answers, greedily or sampled with its generation_config.json."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        model = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self.model = model.eval().to(device)
        self._sampling = json.loads((folder / "generation_config.json").read_text())
        self._renderer = Renderer()
        self._end = self.tokenizer.token_to_id(END)
        self._pad = self.tokenizer.token_to_id(END_OF_TEXT)

    def converse(self, turns: list[Turn], *, is_greedy: bool) -> None:
        """Answers every turn, and runs the called tools until the model calls none."""
        talks = [Conversation(list(turn.talk.messages), turn.talk.tools) for turn in turns]
        waiting = list(range(len(turns)))
        with TemporaryDirectory() as root, ThreadPoolExecutor(os.cpu_count()) as pool:
            for index, turn in enumerate(turns):
                turn.folder = os.path.join(root, str(index))
                _write(Path(turn.folder), turn.files)
            for _ in range(_MAX_ROUNDS):
                answers = self.answer([talks[index] for index in waiting], is_greedy=is_greedy)
                turned = [
                    pool.submit(_act, turns[index], talks[index], answer)
                    for index, answer in zip(waiting, answers, strict=True)
                ]
                waiting = [
                    index for index, acted in zip(waiting, turned, strict=True) if acted.result()
                ]
                if not waiting:
                    break

    def answer(self, talks: Sequence[Conversation], *, is_greedy: bool) -> list[Answer]:
        """Returns the answers to `talks`, which end with a turn of the user or a tool."""
        prompts = [
            self.tokenizer.encode(self._renderer.render(talk, add_generation_prompt=True)).ids
            for talk in talks
        ]
        order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
        answers: dict[int, Answer] = {}
        while order:
            # Longest first, so that the first talk of a batch has the batch's width.
            width = len(prompts[order[-1]]) + _MAX_TOKENS
            count = max(1, _TOKENS_AT_ONCE[self.model.device.type] // width)
            rows, order = order[-count:], order[:-count]
            outputs = self._generate([prompts[index] for index in rows], is_greedy)
            answers |= {index: self._read(row) for index, row in zip(rows, outputs, strict=True)}
        return [answers[index] for index in range(len(prompts))]

    def _generate(self, prompts: list[list[int]], is_greedy: bool) -> list[list[int]]:
        width = max(map(len, prompts))
        padded = [[self._pad] * (width - len(ids)) + ids for ids in prompts]
        mask = [[0] * (width - len(ids)) + [1] * len(ids) for ids in prompts]
        sampling = {key: self._sampling[key] for key in ("temperature", "top_p")}
        device = self.model.device
        output = self.model.generate(
            input_ids=torch.tensor(padded, device=device),
            attention_mask=torch.tensor(mask, device=device),
            max_new_tokens=_MAX_TOKENS,
            do_sample=not is_greedy,
            eos_token_id=[self._end, self._pad],
            pad_token_id=self._pad,
            **(dict.fromkeys(sampling) if is_greedy else {**sampling, "top_k": 0}),
        )
        return output[:, width:].tolist()

    def _read(self, row: list[int]) -> Answer:
        ends = (self._end, self._pad)
        count = next((n for n, token in enumerate(row, 1) if token in ends), len(row))
        text = self.tokenizer.decode(row[:count], skip_special_tokens=True)
        return Answer(text, count, row[count - 1] == self._end)


def calls_of(text: str, tools: Sequence[Tool]) -> list[dict[str, object] | None]:
    """Returns the calls in an answer: name and arguments, or None for an invalid call."""
    if "<tool_call>" in text and not _CALL.search(text):
        return [None]
    return [_parse(source, tools) for source in _CALL.findall(text)]


def outside_calls(text: str) -> str:
    """Returns the text of an answer without its calls."""
    return _CALL.sub("", text)


def _parse(source: str, tools: Sequence[Tool]) -> dict[str, object] | None:
    try:
        call = json.loads(source)
        (tool,) = (tool["function"] for tool in tools if tool["function"]["name"] == call["name"])
        is_valid = set(call["arguments"]) == set(tool["parameters"]["properties"])
        is_valid = is_valid and all(isinstance(text, str) for text in call["arguments"].values())
    except (ValueError, KeyError, TypeError):
        return None
    return call if is_valid and set(call) == {"name", "arguments"} else None


def _act(turn: Turn, talk: Conversation, answer: Answer) -> bool:
    """Records the answer and runs its calls; returns whether the model must answer again."""
    turn.answers.append(answer)
    calls = calls_of(answer.text, talk.tools)
    valid = [call for call in calls if call is not None]
    turn.num_calls += len(calls)
    turn.num_valid_calls += len(valid)
    if not valid or len(valid) < len(calls) or not answer.has_ended:
        return False
    shaped = [{"type": "function", "function": call} for call in valid]
    talk.messages.append({"role": "assistant", "content": "", "tool_calls": shaped})
    for call in valid:
        response = run_tool(str(call["name"]), call["arguments"], turn.folder)
        turn.responses.append(response)
        message: Message = {"role": "tool", "content": response}
        talk.messages.append(message)
    return True


def run_tool(name: str, arguments: object, folder: str) -> str:
    """Returns the output of the tool: a Python process or a shell, in `folder`.

    A model wrote the code, so the process gets none of our environment variables.
    """
    assert isinstance(arguments, dict)
    if name not in ("python", "shell"):
        return "Error: the tool is not available"
    (text,) = arguments.values()
    command = [sys.executable, "-I", "-c", text] if name == "python" else ["sh", "-c", text]
    try:
        ran = subprocess.run(
            command,
            cwd=folder,
            env={"PATH": os.defpath, "HOME": folder, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_TOOL_TIMEOUT_S,
            check=False,
        )
    except (subprocess.TimeoutExpired, ValueError) as error:
        return f"Error: {error}"
    return ran.stdout.rstrip("\n")


def _write(folder: Path, files: Mapping[str, str]) -> None:
    folder.mkdir()
    for path, text in files.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text)
