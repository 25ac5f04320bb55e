"""The tokenizer: byte-level BPE with one token per digit, and the ChatML template."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from random import Random

from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from .curriculum import Conversation, plain_story, talk

VOCAB_SIZE = 2048
END_OF_TEXT, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CONTROL = (END_OF_TEXT, START, END)
RESPONSE, RESPONSE_END = "<tool_response>", "</tool_response>"
MARKUP = (
    "<tool_call>",
    "</tool_call>",
    RESPONSE,
    RESPONSE_END,
    "<think>",
    "</think>",
)

# Words with their leading space, single digits, runs of punctuation, white space.
_PIECES = (
    r"(?i:'(?:s|t|re|ve|m|ll|d))| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_MARKUP = re.compile("|".join(map(re.escape, (*CONTROL, *MARKUP))))
_TEMPLATE = Path(__file__).with_name("chat_template.jinja")


def train_tokenizer(seed: int, num_talks: int = 20_000) -> Tokenizer:
    """Trains the tokenizer on talks of the training split."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(CONTROL) - len(MARKUP),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(seed, num_talks), trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in CONTROL])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in MARKUP])
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path, max_positions: int) -> None:
    """Writes tokenizer.json and tokenizer_config.json."""
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_positions,
        "bos_token": None,
        "eos_token": END,
        "pad_token": END_OF_TEXT,
        "unk_token": None,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "chat_template": _TEMPLATE.read_text(),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


class Renderer:
    """Renders talks as text with the template of the checkpoint."""

    def __init__(self) -> None:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.filters["tojson"] = _tojson
        self._template = environment.from_string(_TEMPLATE.read_text())

    def render(self, talk: Conversation, *, add_generation_prompt: bool = False) -> str:
        """Returns the text of a talk; every turn ends with `<|im_end|>` and a line feed."""
        return self._template.render(
            messages=talk.messages, tools=talk.tools, add_generation_prompt=add_generation_prompt
        )


def _tojson(value: object) -> str:
    # Servers render JSON this way; Jinja's own filter sorts keys and escapes for HTML.
    return json.dumps(value, ensure_ascii=False)


def _texts(seed: int, num_talks: int) -> Iterator[str]:
    rng = Random(seed)
    renderer = Renderer()
    for _ in range(num_talks):
        story = plain_story("train", rng)
        if story is not None:
            yield story
        # The markup is removed, so that no merge crosses it.
        yield from _MARKUP.split(renderer.render(talk("train", rng)))
