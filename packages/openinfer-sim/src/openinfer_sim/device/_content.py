"""The tokens that a modelled model answers: random ids, cheap enough for any number of rows."""

import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from openinfer_contract import GenerateRequest

_NUM_IDS = 1 << 16
_MASK = _NUM_IDS - 1
_BYTES_PER_ID = 4
_PROMPT_TAIL_BYTES = 4096
_GOLDEN = 0x9E3779B97F4A7C15


class Content:
    """A ring of random ids; a sequence reads it from a place of its own.

    Token and place depend on the request's seed and the position alone, or, where the request is
    greedy, on the prompt and the position: the same after a preemption and in any batch.

    Args:
        vocab_size: ids are below it.
        eos_token_ids: ids that end a sequence.
        allowed: ids that may be answered, [n] uint32, EOS ids passed over; None: every id.
        mean_output_tokens: about so many tokens until an EOS id; None: none is answered.
        seed: of the ring.
    """

    def __init__(
        self,
        vocab_size: int,
        *,
        eos_token_ids: Sequence[int] = (),
        allowed: npt.NDArray[np.uint32] | None = None,
        mean_output_tokens: int | None = None,
        seed: int = 0,
    ) -> None:
        rng = np.random.default_rng(seed)
        if allowed is None:
            allowed = np.arange(vocab_size, dtype=np.uint32)
        text = np.setdiff1d(allowed, np.array(eos_token_ids, np.uint32))
        self._ring: npt.NDArray[np.uint32] = rng.choice(text, _NUM_IDS)
        if mean_output_tokens is not None and eos_token_ids:
            places = rng.random(_NUM_IDS) < 1.0 / mean_output_tokens
            self._ring[places] = min(eos_token_ids)

    def place(self, request: GenerateRequest, seed: int) -> int:
        """Where a sequence begins to read."""
        if not request.sampling.is_greedy:
            return (seed * _GOLDEN >> 24) & _MASK
        end = len(request.prompt_token_ids) - _BYTES_PER_ID * request.num_output_prefix
        start = max(0, end - _PROMPT_TAIL_BYTES)
        return zlib.crc32(request.prompt_token_ids[start:end], end) & _MASK

    def read(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
        """The ids at places + positions. [n] int64 -> [n] uint32."""
        ids: npt.NDArray[np.uint32] = self._ring[places & _MASK]
        return ids
