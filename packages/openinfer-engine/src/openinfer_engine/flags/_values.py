"""Values of flags as users write them: counts with suffixes, dtypes, JSON objects."""

import json
import re
from decimal import Decimal
from typing import Any

_SUFFIXES = {
    "": 1,
    "k": 1000,
    "m": 1000**2,
    "g": 1000**3,
    "K": 1024,
    "M": 1024**2,
    "G": 1024**3,
    "T": 1024**4,
}
_COUNT = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)([kmgKMGT]?)")
_MOST = 2**63 - 1
_DTYPES = {"half": "float16", "fp16": "float16", "bf16": "bfloat16", "float": "float32"}


def parse_count(text: str) -> int:
    """Returns `4096`, `32k` (decimal) or `32K` (binary) as an integer.

    Raises:
        ValueError: the text is anything else, including zero and negative numbers.
    """
    match = _COUNT.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a count such as 4096, 32k (32,000) or 32K (32,768)")
    value = Decimal(match[1]) * _SUFFIXES[match[2]]
    if value != int(value):
        raise ValueError(f"{text!r} is not a whole number")
    return _check_range(int(value), 1)


def parse_int(text: str) -> int:
    """Returns an integer that fits into 64 bits.

    Raises:
        ValueError: the text is anything else.
    """
    try:
        value = int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number") from None
    return _check_range(value, -_MOST - 1)


def _check_range(value: int, least: int) -> int:
    if value < least:
        raise ValueError(f"must be at least {least}")
    if value > _MOST:
        raise ValueError(f"must be at most {_MOST}")
    return value


def parse_float(text: str) -> float:
    """Returns a number.

    Raises:
        ValueError: the text is not a number.
    """
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None


def parse_dtype(text: str) -> str:
    """Returns the canonical name of a dtype.

    Raises:
        ValueError: the text names no supported dtype.
    """
    name = _DTYPES.get(text, text)
    if name not in ("auto", "bfloat16", "float16", "float32"):
        raise ValueError(f"{text!r} is not one of auto, bfloat16, float16 and float32")
    return name


def parse_json(text: str) -> dict[str, Any]:
    """Returns a JSON object.

    Raises:
        ValueError: the text is not a JSON object.
    """
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{text!r} is not a JSON object")
    return value
