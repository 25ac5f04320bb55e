"""Output tokens of the modelled model: random ids, read from a table drawn in advance."""

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
    """Ring buffer of random ids. Each sequence reads it from its own start position.

    The token at a position depends on the request's seed and the position alone. For a greedy
    request it depends on the prompt and the position. So a sequence gets the same tokens after a
    preemption and in any batch.

    Args:
        vocab_size: Upper bound of the ids, exclusive.
        eos_token_ids: Ids that end a sequence.
        allowed: Ids that may be sampled, [n] uint32. EOS ids in it are skipped. None allows every
            id.
        mean_output_tokens: Mean number of tokens until an EOS id. None samples no EOS id.
        seed: Seed of the ring.
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
        """Returns the position of the ring at which a sequence begins to read."""
        if not request.sampling.is_greedy:
            return (seed * _GOLDEN >> 24) & _MASK
        end = len(request.prompt_token_ids) - _BYTES_PER_ID * request.num_output_prefix
        start = max(0, end - _PROMPT_TAIL_BYTES)
        return zlib.crc32(request.prompt_token_ids[start:end], end) & _MASK

    def read(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
        """Returns the ids at positions of the ring. [n] int64 -> [n] uint32."""
        ids: npt.NDArray[np.uint32] = self._ring[places & _MASK]
        return ids
