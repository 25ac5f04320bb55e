"""Texts on which two tokenizers are compared: texts from the vocabulary, and unusual Unicode."""

import random
from collections.abc import Callable, Iterator, Sequence

PROBE_VERSION = "1"
"""Version of these texts; verdicts of other versions are not used."""
_BATCH = 2048
_NUM_RANDOM_SEQUENCES = 2000
_NUM_RANDOM_TEXTS = 1000
_ODD = (
    *("", " ", "  ", "\n", "\r\n", " \n \n  ", "\t\tif x:\n\t\t\treturn\n", "a  b   c    d"),
    *("I'm you'll it's don't WE'RE they'd'VE", "'s 's's ’s", "1234567890 3.14 1,000 ½ ٣ Ⅷ 一二三"),
    *("Größe naïve cafe\u0301 café e\u0301\u0323 \u0301x", "ﬁ ﬀ Å Å ǅ ß ẞ ı İ"),
    *("नमस्ते ภาษาไทย 한국어 مرحبا", "   x", "\u200b\u200d\ufeff\u00ad\u2028\u2029\x85\xa0\u3000x"),
    *("你好，世界！「引用」…", "😀👩‍👩‍👧🏳️‍🌈🇩🇪 1️⃣",),
    *("\x00\x01\x1c\x1f\x7f", "x" * 3000, "ab" * 1500, "0" * 500, "!" * 500, " " * 500 + "x"),
    *("https://a.b/c?d=e&f=%20#g", "<a href='x'>&amp;</a>", '{"a": [1, null, "\\u00e9\\n"]}'),
    *("_snake_case camelCase PascalCase kebab-case", "a\u0308\u0308", "\U0010ffff\ue000\ufffd"),
)  # fmt: skip
_RANGES = (
    (0x20, 0x7F), (0x09, 0x0E), (0xA0, 0x250), (0x300, 0x370), (0x370, 0x600), (0x900, 0xE00),
    (0x2000, 0x2070), (0x3040, 0x3100), (0x4E00, 0x5000), (0xAC00, 0xAD00), (0x1F300, 0x1F700),
)  # fmt: skip


def probe_batches(
    vocab_size: int, decode: Callable[[list[int]], str], added: Sequence[str]
) -> Iterator[list[str]]:
    """Yields batches of texts, always the same ones.

    Args:
        vocab_size: number of ids of the tokenizer.
        decode: turns ids into text.
        added: contents of the added tokens.
    """
    rng = random.Random(0)
    yield list(_ODD)
    yield [f"{left}{token}{right}" for token in added[:64] for left, right in _neighbours()]
    yield [_random_text(rng, added) for _ in range(_NUM_RANDOM_TEXTS)]
    for begin in range(0, _NUM_RANDOM_SEQUENCES, _BATCH // 8):
        count = min(_BATCH // 8, _NUM_RANDOM_SEQUENCES - begin)
        yield [decode([rng.randrange(vocab_size) for _ in range(40)]) for _ in range(count)]
    for begin in range(0, vocab_size, _BATCH):
        yield [decode([i]) for i in range(begin, min(begin + _BATCH, vocab_size))]


def _neighbours() -> Iterator[tuple[str, str]]:
    sides = ("", " ", "a", "\n", "\u0301")
    return ((left, right) for left in sides for right in sides)


def _random_text(rng: random.Random, added: Sequence[str]) -> str:
    parts = []
    for _ in range(rng.randrange(1, 30)):
        if added and rng.random() < 0.05:
            parts.append(rng.choice(added))
        else:
            low, high = rng.choice(_RANGES)
            parts += [chr(rng.randrange(low, high)) for _ in range(rng.randrange(1, 6))]
    return "".join(parts)
