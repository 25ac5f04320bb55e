"""Scripted model: recites outputs that a test wrote, through tokenizer, server and engine process.

`write_scripted_checkpoint` writes a checkpoint whose token ids, in ascending order, are the pieces
of the outputs. The counting model follows each id by the next one, so it recites the outputs. The
chat template ends a prompt with the id that precedes the first piece of the next output. The n-th
assistant turn of a conversation gets the n-th output; after the last output the first one is
repeated.
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
    folder: Path, outputs: Sequence[str], *, max_model_len: int = 4096
) -> Path:
    """Writes a checkpoint for `ScriptedLine` that recites `outputs` in turn. Greedy by default.

    Args:
        folder: Folder to create.
        outputs: Texts of more than three characters each. They may contain markers of tool calls
            and of reasoning.
        max_model_len: Upper bound of prompt and output tokens. A prompt has one token for each
            byte.

    Returns:
        The folder.

    Raises:
        ValueError: An output is too short to be cut into tokens of its own.
    """
    tokens = _Tokens()
    tokens.add("<|turn|>", is_special=True)
    ends = []
    for number, output in enumerate(outputs):
        tokens.add(f"<|answer {number}|>", is_special=True)
        for piece in tokens.new_pieces(output):
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
    template = _TEMPLATE.replace("NUM_ANSWERS", str(len(outputs)))
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return folder


class _Tokens:
    """Byte-level vocabulary, followed by added tokens, in the layout of tokenizer.json."""

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
        """Cuts a text into pieces of a few characters that are not tokens yet."""
        pieces: list[str] = []
        start = 0
        while start < len(text):
            end = start + 3
            # A last piece of one character would collide with the token of that byte.
            while len(text) - end == 1 or self._is_taken(text[start:end], pieces):
                if end >= len(text):
                    if not pieces:
                        raise ValueError(f"{text!r} is a piece of another output; make it longer")
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
    """Returns the byte-level alphabet: printable characters for themselves, other bytes shifted."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(_NUM_BYTES) if byte not in printable]
    spelled = {chr(byte): byte for byte in printable}
    return spelled | {chr(_NUM_BYTES + number): byte for number, byte in enumerate(others)}


class ScriptedOptions(Struct, frozen=True, kw_only=True):
    """Options of `ScriptedLine`."""

    step_s: float = 0.0
    """Duration of a step in seconds."""


class ScriptedLine:
    """Model line for scripted checkpoints. A test installs it with `install_scripted_line`."""

    name = "scripted"
    options = ScriptedOptions

    def probe(self, config: Mapping[str, Any], /) -> Claim | Refusal:
        """Claims checkpoints that `write_scripted_checkpoint` wrote, and no others."""
        if config.get("architectures") == [_ARCHITECTURE]:
            return Claim(_ARCHITECTURE)
        return Refusal(f"architectures: only {_ARCHITECTURE}")

    def plan(self, spec: LaunchSpec, /) -> ServePlan:
        """Returns the sizes of the counting model.

        Raises:
            OptionRejected: The device is a GPU, which the counting model cannot use.
        """
        if spec.engine.device == "cuda":
            raise OptionRejected("device", "a scripted model runs without a GPU; use cpu")
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
        """Makes a counting model over the checkpoint's vocabulary."""
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
    """Installs `SCRIPTED_LINE` wherever `folder` is on the import path.

    Writes the metadata of a package with one entry point.

    Returns:
        The folder.
    """
    info = folder / "scripted_line-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: scripted-line\nVersion: 1.0\n")
    entry = "[openinfer.models]\nscripted = openinfer_testing:SCRIPTED_LINE\n"
    (info / "entry_points.txt").write_text(entry)
    return folder
