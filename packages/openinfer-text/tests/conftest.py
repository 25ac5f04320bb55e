"""Small tokenizers of the families in use, trained here on a few sentences."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

CORPUS = [
    "The quick brown fox jumps over the lazy dog, and then it sleeps.",
    "def main():\n    for index in range(10):\n        print(index, 'hello world')\n",
    "Größe, naïve café, déjà vu; 你好，世界！ 안녕하세요 مرحبا 😀👩‍👩‍👧 e\u0301",
    "user assistant system tool_call function arguments name 12345 3.14",
] * 3
QWEN_REGEX = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHATML = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def _byte_level(normalizer: Any = None, *, specials: Sequence[str] = CHATML) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN_REGEX), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=list(specials),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def qwen() -> Tokenizer:
    tokenizer = _byte_level(normalizers.NFC())
    tokenizer.add_tokens(
        [AddedToken(text, normalized=False) for text in ("<tool_call>", "</tool_call>", "<think>")]
    )
    # The token is matched after NFC, so an accent after it prevents the match.
    tokenizer.add_tokens([AddedToken("xe", normalized=True)])
    return tokenizer


def llama3() -> Tokenizer:
    """Byte level with BOS by template, no normalizer, overlapping and normalized added tokens."""
    tokenizer = _byte_level(specials=["<|bos|>", "<|eot|>", "<|eot|><|eot|>", "<|e"])
    tokenizer.add_tokens(
        [AddedToken("<late>", normalized=True), AddedToken("<late", normalized=True)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|bos|> $A", special_tokens=[("<|bos|>", tokenizer.token_to_id("<|bos|>"))]
    )
    return tokenizer


def sentencepiece() -> Tokenizer:
    """Llama 2 as it was published first: Prepend and Replace normalizers, byte fallback."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    specials = ["<unk>", "<s>", "</s>"]
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=[*specials, *(f"<0x{byte:02X}>" for byte in range(256))],
        show_progress=False,
    )
    tokenizer.train_from_iterator([CORPUS[0], CORPUS[1], CORPUS[3]], trainer)
    spec = json.loads(tokenizer.to_str())
    spec["added_tokens"] = spec["added_tokens"][: len(specials)]
    return Tokenizer.from_str(json.dumps(spec))


def byte_window() -> Tokenizer:
    """Byte fallback under a decoder of no known shape."""
    tokenizer = sentencepiece()
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    return tokenizer


def metaspace() -> Tokenizer:
    """Unigram-like spelling with the Metaspace decoder: no table of bytes can decode it."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<unk>", "</s>"], show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def flagged() -> Tokenizer:
    """An added token that swallows the spaces around it."""
    tokenizer = _byte_level()
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, rstrip=True, normalized=False)])
    return tokenizer


BUILDERS: dict[str, Callable[[], Tokenizer]] = {
    "qwen": qwen,
    "llama3": llama3,
    "sentencepiece": sentencepiece,
    "byte_window": byte_window,
    "metaspace": metaspace,
    "flagged": flagged,
}
NAMED_TOKENS = {
    "qwen": {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
    "llama3": {"bos_token": "<|bos|>", "eos_token": {"content": "<|eot|>"}},
    "sentencepiece": {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
    "byte_window": {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
    "metaspace": {"eos_token": "</s>", "unk_token": "<unk>"},
    "flagged": {"eos_token": "<|im_end|>", "mask_token": "<mask>"},
}


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder with tokenizer.json and tokenizer_config.json for every kind of tokenizer."""
    root = tmp_path_factory.mktemp("checkpoints")
    folders = {}
    for name, build in BUILDERS.items():
        folder = root / name
        folder.mkdir()
        build().save(str(folder / "tokenizer.json"))
        (folder / "tokenizer_config.json").write_text(json.dumps(NAMED_TOKENS[name]))
        folders[name] = folder
    return folders


@pytest.fixture(scope="session")
def templates() -> dict[str, str]:
    """Returns chat templates by name, written for these tests from the elements of published
    ones."""
    folder = Path(__file__).parent / "templates"
    return {path.stem: path.read_text() for path in sorted(folder.glob("*.jinja"))}


@pytest.fixture(scope="session")
def hf_render(checkpoints: dict[str, Path]) -> Callable[..., str]:
    """Returns a function that renders by transformers: (template, messages, **arguments of
    apply_chat_template)."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(checkpoints["qwen"] / "tokenizer.json"),
        bos_token="<|endoftext|>",
        eos_token="<|im_end|>",
    )

    def render(template: str, messages: Any, **arguments: Any) -> str:
        text = tokenizer.apply_chat_template(
            messages, chat_template=template, tokenize=False, **arguments
        )
        assert isinstance(text, str)
        return text

    return render
