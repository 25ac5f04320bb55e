"""The bytes of tokens, derived from the decoder of a tokenizer.

Two families cover the models in use. Byte-level BPE spells every byte as one printable character
(GPT-2's table). SentencePiece style writes a space as U+2581 and bytes without a token of their own
as `<0x..>`. Both turn each token into bytes without regard to its neighbours, so a table and a
UTF-8 decoder can decode text. Other decoders are left to the tokenizer itself.
"""

from dataclasses import dataclass
from typing import Any, Literal

REPLACE_RUNS = "replace"
"""Broken UTF-8 becomes one U+FFFD per maximal subpart, as byte-level decoders do."""
REPLACE_EACH_BYTE = "openinfer-text.replace-each-byte"
"""Broken UTF-8 becomes one U+FFFD per byte, as byte-fallback decoders do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderPlan:
    """The rules by which ids of one tokenizer become text."""

    spelling: Literal["byte_level", "byte_fallback"]
    """How the vocabulary spells bytes."""
    is_table: bool
    """Whether the text is the tokens' bytes joined; if not, only the tokenizer can decode."""
    num_leading_spaces: int = 0
    """Number of spaces that are dropped at the start of a text."""

    @property
    def utf8_errors(self) -> str:
        """Error handler of the incremental UTF-8 decoder."""
        return REPLACE_RUNS if self.spelling == "byte_level" else REPLACE_EACH_BYTE

    def token_bytes(self, token: str) -> bytes:
        """Returns the UTF-8 bytes of a token, possibly cut inside a character."""
        if self.spelling == "byte_level":
            try:
                return bytes([_BYTE_OF_CHAR[char] for char in token])
            except KeyError:
                return token.encode()
        if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            try:
                return bytes((int(token[3:5], 16),))
            except ValueError:
                return token.encode()
        return token.replace("\u2581", " ").encode()


def plan_decoder(decoder: dict[str, Any] | None) -> DecoderPlan:
    """Returns the plan for the `decoder` of a tokenizer.json."""
    steps = _flatten(decoder)
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return DecoderPlan(spelling="byte_level", is_table=True)
    if kinds[:3] == ["Replace", "ByteFallback", "Fuse"] and _replaces_metaspace(steps[0]):
        rest = steps[3:]
        if not rest:
            return DecoderPlan(spelling="byte_fallback", is_table=True)
        if len(rest) == 1 and _strips_leading_spaces(rest[0]):
            num = rest[0]["start"]
            return DecoderPlan(spelling="byte_fallback", is_table=True, num_leading_spaces=num)
    if "ByteLevel" in kinds:
        return DecoderPlan(spelling="byte_level", is_table=False)
    return DecoderPlan(spelling="byte_fallback", is_table=False)


def _flatten(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    if decoder is None:
        return []
    if decoder["type"] == "Sequence":
        return [step for part in decoder["decoders"] for step in _flatten(part)]
    return [decoder]


def _replaces_metaspace(step: dict[str, Any]) -> bool:
    return step.get("pattern") == {"String": "\u2581"} and step.get("content") == " "


def _strips_leading_spaces(step: dict[str, Any]) -> bool:
    return step["type"] == "Strip" and step.get("content") == " " and step.get("stop") == 0


def _byte_alphabet() -> dict[str, int]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(0x100) if chr(byte) not in alphabet)
    alphabet |= {chr(0x100 + index): byte for index, byte in enumerate(list(others))}
    return alphabet


_BYTE_OF_CHAR = _byte_alphabet()
"""GPT-2's spelling of bytes: printable Latin-1 as itself, the others from U+0100 up."""
