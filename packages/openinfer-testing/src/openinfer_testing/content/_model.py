"""Model of the content executor: an entry depends on all entries before it."""

import hashlib
from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from openinfer_contract import GenerateRequest, unpack_ids

VOCAB_SIZE = 40
EOS = 39

Entries = npt.NDArray[np.uint64]
"""[num_positions] The value that each position writes to the cache."""


def with_entry(entries: Entries, token_id: int, adapter_uid: bytes) -> Entries:
    """Returns the entries and one more, which depends on the token and all earlier entries."""
    digest = hashlib.blake2b(digest_size=8, key=adapter_uid)
    digest.update(entries.tobytes())
    digest.update(int(token_id).to_bytes(4, "little"))
    return np.append(entries, np.uint64(int.from_bytes(digest.digest(), "little")))


def next_token(entries: Entries, seed: int, banned: Collection[int] = ()) -> int:
    """Returns the token that is sampled after these entries."""
    digest = hashlib.blake2b(entries.tobytes() + seed.to_bytes(8, "little"), digest_size=64)
    ranking = [byte % VOCAB_SIZE for byte in digest.digest()]
    return next(token_id for token_id in ranking if token_id not in banned)


def banned_ids(request: GenerateRequest, num_output: int) -> tuple[int, ...]:
    """Returns the ids that the sampler masks: stop ids before `min_tokens`."""
    if num_output >= request.stop.min_tokens:
        return ()
    eos = () if request.stop.ignore_eos else (EOS,)
    return (*request.stop.stop_token_ids, *eos)


def adapter_uid(request: GenerateRequest) -> bytes:
    """Returns the uid of the request's adapter, or an empty uid for the base model."""
    return request.adapter.uid if request.adapter else b""


def alone(request: GenerateRequest, seed: int, max_model_len: int) -> tuple[list[int], str]:
    """Computes a request's output tokens and finish reason without blocks, batches or plans."""
    uid = adapter_uid(request)
    entries = np.empty(0, np.uint64)
    for token_id in unpack_ids(request.prompt_token_ids):
        entries = with_entry(entries, token_id, uid)
    stops = set(request.stop.stop_token_ids) | (set() if request.stop.ignore_eos else {EOS})
    num_output = request.num_output_prefix
    tokens: list[int] = []
    while True:
        token_id = next_token(entries, seed, banned_ids(request, num_output))
        tokens.append(token_id)
        num_output += 1
        if token_id in stops and num_output > request.stop.min_tokens:
            return tokens, "stop"
        if num_output == request.stop.max_tokens or len(entries) + 1 == max_model_len:
            return tokens, "length"
        entries = with_entry(entries, token_id, uid)
