"""One live request with a grammar: its constraint, what else bans tokens of it, what it costs."""

import time
from collections import deque
from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from openinfer_contract import GenerateRequest, Sampling, banning_fields, nothing_left, unpack_ids
from openinfer_grammar import Constraint, GrammarFailed, MaskRow

_PLAIN = Sampling()
_SECONDS_A_TOKEN = 0.01
_MAX_EXCESS_SECONDS = 0.25


class ConstrainedRequest:
    """A request and its constraint. Belongs to the step thread, whose time it may not take up.

    A token may cost 10 ms of that thread, and a quarter of a second over a request's life goes
    beyond it: an ambiguous grammar costs more with every token, and every row of a step waits.

    Args:
        request: has a grammar.
        constraint: behind the request's output prefix.
        eos_token_ids: the model's.
    """

    def __init__(
        self, request: GenerateRequest, constraint: Constraint, eos_token_ids: Collection[int]
    ) -> None:
        self.request = request
        self.constraint = constraint
        self.is_forcible = _is_forcible(request)
        fields = banning_fields(request)
        self._bans = _Bans(request, eos_token_ids, fields) if len(fields) > 1 else None
        self._excess_s = 0.0

    def check_mask(self, row: MaskRow) -> None:
        """Looks at a mask that its constraint has just filled.

        Raises:
            GrammarFailed: it took too long, or leaves nothing that the other fields allow.
        """
        self._charge(self.constraint.fill_seconds)
        if self._bans is not None:
            self._bans.check(row)

    def accept(self, token_ids: Sequence[int]) -> None:
        """Goes on by the ids that were generated.

        Raises:
            GrammarFailed: one is not allowed, or the grammar has run into a limit, or takes too
                long.
        """
        begin = time.thread_time()
        self.constraint.accept(token_ids)
        self._charge(time.thread_time() - begin)
        if self._bans is not None:
            self._bans.follow(token_ids)

    def _charge(self, seconds: float) -> None:
        self._excess_s = max(0.0, self._excess_s + seconds - _SECONDS_A_TOKEN)
        if self._excess_s > _MAX_EXCESS_SECONDS:
            raise GrammarFailed(
                "the grammar takes too long for a token; make it smaller or less ambiguous"
            )


class _Bans:
    """Ids that fields beside the grammar rule out, followed on the host.

    The sampler bans them itself. What it could not tell from a model gone wrong is that nothing is
    left: that is the request's own doing, and said so by name.
    """

    def __init__(
        self, request: GenerateRequest, eos_token_ids: Collection[int], fields: Sequence[str]
    ) -> None:
        sampling, stop = request.sampling, request.stop
        allowed = sampling.allowed_token_ids
        self._allowed = None if allowed is None else _ids(allowed)
        words = [unpack_ids(word) for word in sampling.bad_words]
        self._words = [(tuple(word[:-1]), word[-1]) for word in words]
        self._stop_ids = np.array([*eos_token_ids, *stop.stop_token_ids], np.int64)
        self._min_tokens = stop.min_tokens
        num_before = request.num_prompt_tokens - request.num_output_prefix
        output = unpack_ids(request.prompt_token_ids[4 * num_before :])
        self._num_output = len(output)
        self._recent: deque[int] = deque(output, maxlen=max(map(len, words), default=0))
        self._fields = fields

    def follow(self, token_ids: Sequence[int]) -> None:
        """The output has gone on."""
        self._num_output += len(token_ids)
        self._recent.extend(token_ids)

    def check(self, row: MaskRow) -> None:
        """Looks whether an id of the mask is left.

        Raises:
            GrammarFailed: none is.
        """
        bits = np.unpackbits(row.view(np.uint8), bitorder="little")
        if self._allowed is not None:
            left = np.zeros_like(bits)
            left[self._allowed] = bits[self._allowed]
            bits = left
        recent = tuple(self._recent)
        for begin, last in self._words:
            if not begin or recent[-len(begin) :] == begin:
                bits[last] = 0
        if self._num_output < self._min_tokens:
            # Some checkpoints name an EOS that their vocabulary lacks.
            bits[self._stop_ids[self._stop_ids < len(bits)]] = 0
        if not bits.any():
            raise GrammarFailed(nothing_left(self._fields))


def _ids(column: bytes) -> npt.NDArray[np.int64]:
    return np.frombuffer(column, "<u4").astype(np.int64)


def _is_forcible(request: GenerateRequest) -> bool:
    """Whether tokens may be given instead of sampled: nothing is counted or told about each."""
    sampling = request.sampling
    counted: tuple[tuple[object, object], ...] = (
        (sampling.repetition_penalty, _PLAIN.repetition_penalty),
        (sampling.presence_penalty, _PLAIN.presence_penalty),
        (sampling.frequency_penalty, _PLAIN.frequency_penalty),
        (sampling.logit_bias, _PLAIN.logit_bias),
        (sampling.allowed_token_ids, _PLAIN.allowed_token_ids),
        (sampling.bad_words, _PLAIN.bad_words),
        (request.logprobs, None),
        (request.prompt_logprobs, None),
        (request.stop.min_tokens, 0),
    )
    return all(value == plain for value, plain in counted)
