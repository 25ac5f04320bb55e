"""A small byte-level BPE tokenizer with a ChatML template; it encodes any text."""

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END_OF_TEXT, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL_TOKENS = (END_OF_TEXT, IM_START, IM_END)

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_SENTENCES = (
    "The quick brown fox jumps over the lazy dog.",
    "A block of the cache holds the keys and values of sixteen tokens.",
    "What is the capital of France? The capital of France is Paris.",
    "def add(left: int, right: int) -> int:\n    return left + right\n",
)


def train_tokenizer(vocab_size: int) -> Tokenizer:
    """Trains a byte-level BPE of at most `vocab_size` entries; the special tokens come first.

    Every byte has an entry, so that any text can be encoded. `vocab_size` must be 259 or more.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_SENTENCES, trainer)
    return tokenizer


def write_tokenizer(folder: Path, vocab_size: int) -> None:
    """Writes tokenizer.json into a checkpoint folder."""
    train_tokenizer(vocab_size).save(str(folder / "tokenizer.json"))


def tokenizer_config() -> dict[str, Any]:
    """Returns the fields of tokenizer_config.json."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": CHAT_TEMPLATE,
        "eos_token": IM_END,
        "pad_token": END_OF_TEXT,
        "model_max_length": 4096,
    }
