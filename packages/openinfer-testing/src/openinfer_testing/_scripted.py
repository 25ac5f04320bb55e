"""A model that says what a test wrote, behind the whole stack: tokenizer, server, engine process.

`write_scripted_checkpoint` makes a checkpoint whose tokens, in the order of their ids, are the
pieces of the answers; the counting model, which follows each token by the next one, then recites
them. The chat template ends a prompt with the token before the first piece of the answer that is
due: the n-th assistant turn of a conversation gets the n-th answer, and after the last the first.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from openinfer_engine import Claim, Executor, LaunchSpec, OptionRejected, Refusal, ServePlan
from openinfer_testing._counting import CountingShape
from openinfer_testing._modelled import ModelledExecutor, ModelledOptions

_ARCHITECTURE = "ScriptedForCausalLM"
_BLOCK_TOKENS = 16
_NUM_BYTES = 256
_TEMPLATE = """\
{# It reasons, too: <think> </think> #}{% if tools %}{% for tool in tools %}{{ tool | tojson }}
{% endfor %}{% endif %}
{% set turns = namespace(count=0) %}
{% for message in messages %}
<|turn|>{{ message.role }}: {{ message.content }}
{% for call in message.tool_calls or [] %}
<tool_call>{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}</tool_call>
{% endfor %}
{% if message.role == "assistant" %}{% set turns.count = turns.count + 1 %}{% endif %}
{% endfor %}
{% if add_generation_prompt %}{{ "<|answer " ~ (turns.count % NUM_ANSWERS) ~ "|>" }}{% endif %}
"""  # noqa: E501 - a line of a template is a line of the prompt


def write_scripted_checkpoint(
    folder: Path, answers: Sequence[str], *, max_model_len: int = 4096
) -> Path:
    """A checkpoint that gives `answers` in turn, for `ScriptedLine`; greedy unless asked otherwise.

    Args:
        folder: is made.
        answers: longer than three characters each; with markers of calls and reasoning, if wanted.
        max_model_len: tokens of a prompt, which are its bytes, and its answer.

    Returns:
        The folder.

    Raises:
        ValueError: an answer is too short to have a token of its own.
    """
    tokens = _Tokens()
    tokens.add("<|turn|>", is_special=True)
    ends = []
    for number, answer in enumerate(answers):
        tokens.add(f"<|answer {number}|>", is_special=True)
        for piece in tokens.new_pieces(answer):
            tokens.add(piece, is_special=False)
        ends.append(tokens.add(f"<|end {number}|>", is_special=True))
    folder.mkdir(parents=True)
    files = {
        "config.json": {
            "architectures": [_ARCHITECTURE],
            "vocab_size": tokens.size + 1,
            "max_position_embeddings": max_model_len,
            "eos_token_id": tokens.size,
        },
        "generation_config.json": {"temperature": 0.0, "eos_token_id": ends},
        "tokenizer.json": tokens.as_json(),
        "tokenizer_config.json": {},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    template = _TEMPLATE.replace("NUM_ANSWERS", str(len(answers)))
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return folder


class _Tokens:
    """A byte-level vocabulary and added tokens behind it, as tokenizer.json spells them."""

    def __init__(self) -> None:
        self._added: dict[str, bool] = {}

    @property
    def size(self) -> int:
        return _NUM_BYTES + len(self._added)

    def add(self, text: str, *, is_special: bool) -> int:
        assert text not in self._added, text
        self._added[text] = is_special
        return self.size - 1

    def new_pieces(self, text: str) -> Iterable[str]:
        """Cuts a text into pieces of a few characters, none of which is a token yet."""
        pieces: list[str] = []
        start = 0
        while start < len(text):
            end = start + 3
            # A single character that is left over would be one of the bytes' own tokens.
            while len(text) - end == 1 or self._is_taken(text[start:end], pieces):
                if end >= len(text):
                    if not pieces:
                        raise ValueError(f"{text!r} is a piece of another answer; make it longer")
                    start -= len(pieces.pop())
                end += 1
            pieces.append(text[start:end])
            start = end
        return pieces

    def _is_taken(self, text: str, pieces: Sequence[str]) -> bool:
        return text in self._added or text in pieces

    def as_json(self) -> dict[str, Any]:
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [
                {"id": _NUM_BYTES + number, "content": text, "special": is_special} | flags
                for number, (text, is_special) in enumerate(self._added.items())
            ],
            "normalizer": None,
            "pre_tokenizer": byte_level | {"use_regex": False},
            "post_processor": None,
            "decoder": byte_level | {"use_regex": False},
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "vocab": _byte_vocab(),
                "merges": [],
            },
        }


def _byte_vocab() -> dict[str, int]:
    """The byte-level alphabet: printable characters for themselves, the others shifted."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(_NUM_BYTES) if byte not in printable]
    spelled = {chr(byte): byte for byte in printable}
    return spelled | {chr(_NUM_BYTES + number): byte for number, byte in enumerate(others)}


class ScriptedOptions(Struct, frozen=True, kw_only=True):
    """What `ScriptedLine` can be told."""

    step_s: float = 0.0
    """How long a step takes."""


class ScriptedLine:
    """A model line for scripted checkpoints; a test installs it by an entry point of its own."""

    name = "scripted"
    options = ScriptedOptions

    def probe(self, config: Mapping[str, Any], /) -> Claim | Refusal:
        """Claims what `write_scripted_checkpoint` wrote."""
        if config.get("architectures") == [_ARCHITECTURE]:
            return Claim(_ARCHITECTURE)
        return Refusal(f"architectures: only {_ARCHITECTURE}")

    def plan(self, spec: LaunchSpec, /) -> ServePlan:
        """Sizes of the counting model.

        Raises:
            OptionRejected: for a GPU, which nothing here would use.
        """
        if spec.engine.device == "cuda":
            raise OptionRejected("device", "a script needs no GPU")
        shape = _shape(spec)
        return ServePlan(
            device="modelled",
            dtype="none",
            max_model_len=shape.max_model_len,
            max_num_seqs=shape.max_num_seqs,
            max_num_batched_tokens=shape.max_num_batched_tokens,
            vocab_size=shape.vocab_size,
            eos_token_ids=(shape.vocab_size - 1,),
        )

    def launch(self, spec: LaunchSpec, /) -> Executor:
        """The counting model over the checkpoint's vocabulary."""
        step_s = float(spec.line_options.get("step_s", 0.0))
        return ModelledExecutor(ModelledOptions(shape=_shape(spec), step_s=step_s))


def _shape(spec: LaunchSpec) -> CountingShape:
    config = json.loads((Path(spec.model_path) / "config.json").read_text(encoding="utf-8"))
    max_model_len = config["max_position_embeddings"]
    return CountingShape(
        vocab_size=config["vocab_size"],
        max_model_len=max_model_len,
        max_num_batched_tokens=max_model_len // 8,
        num_blocks=4 * max_model_len // _BLOCK_TOKENS,
    )


SCRIPTED_LINE = ScriptedLine()


def install_scripted_line(folder: Path) -> Path:
    """Writes into `folder` what makes the line an installed one wherever `folder` is on the path.

    Returns:
        The folder.
    """
    info = folder / "scripted_line-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: scripted-line\nVersion: 1.0\n")
    entry = "[openinfer.models]\nscripted = openinfer_testing:SCRIPTED_LINE\n"
    (info / "entry_points.txt").write_text(entry)
    return folder
