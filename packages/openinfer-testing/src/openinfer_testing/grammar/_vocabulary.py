"""Small byte-level vocabulary with a few words, for grammar tests."""

import json
from collections.abc import Sequence

_WORDS = (*("true", "false", "name", "null", "tr", "ab", "abc", "cd"), *('":', '", ', '{"'))


def byte_characters() -> list[str]:
    """Returns the character that byte-level tokenizers use for each byte.

    A printable byte is its own character; the others are numbered from 256 on.
    """
    printing = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printing]
    spelled = {byte: chr(byte) for byte in printing}
    spelled |= {byte: chr(256 + index) for index, byte in enumerate(others)}
    return [spelled[byte] for byte in range(256)]


_BYTES = byte_characters()
_TOKENS = [bytes([byte]) for byte in range(256)] + [word.encode() for word in _WORDS]

EOS_TOKEN_IDS = (len(_TOKENS), len(_TOKENS) + 1)
"""Two EOS ids."""

VOCAB_SIZE = 300
"""Size of the model's vocabulary. It exceeds the tokenizer's and is no multiple of 32."""


def tokenizer_json() -> bytes:
    """Returns the vocabulary in the layout of tokenizer.json."""
    vocab = {
        "".join(_BYTES[byte] for byte in token): token_id for token_id, token in enumerate(_TOKENS)
    }
    added = [
        {
            "id": token_id,
            "content": f"<|end{index}|>",
            "special": True,
            **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False),
        }
        for index, token_id in enumerate(EOS_TOKEN_IDS)
    ]
    byte_level = {
        "type": "ByteLevel",
        **dict.fromkeys(("add_prefix_space", "trim_offsets", "use_regex"), False),
    }
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    }
    return json.dumps(content).encode()


def encode(text: str) -> list[int]:
    """Returns one id for each byte of the text."""
    return list(text.encode())


def decode(token_ids: Sequence[int]) -> str:
    """Returns the text of ids. EOS ids have no text."""
    return b"".join(_TOKENS[i] for i in token_ids if i < len(_TOKENS)).decode(errors="replace")
