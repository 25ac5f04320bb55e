"""A live request with a grammar, and a bound on the step thread's time that the grammar takes."""

import time
from collections.abc import Sequence

from openinfer_contract import GenerateRequest, Sampling
from openinfer_grammar import Constraint, GrammarFailed

_PLAIN = Sampling()
_SECONDS_A_TOKEN = 0.01
_MAX_EXCESS_SECONDS = 0.25


class ConstrainedRequest:
    """A request, its constraint, and the step thread's time spent on it. Used by the step thread.

    A token may cost 10 ms of that thread. The time beyond that may add up to a quarter of a second
    over the request's life; then the request fails. An ambiguous grammar costs more with every
    token, and all other rows of the step wait for it.

    Args:
        request: a request with a grammar.
        constraint: its constraint, advanced over the request's output prefix.
    """

    def __init__(self, request: GenerateRequest, constraint: Constraint) -> None:
        self.request = request
        self.constraint = constraint
        self.is_forcible = _is_forcible(request)
        self._excess_s = 0.0

    def charge_mask(self) -> None:
        """Charges the time that filling the last mask took.

        Raises:
            GrammarFailed: the grammar has used up its time.
        """
        self._charge(self.constraint.fill_seconds)

    def accept(self, token_ids: Sequence[int]) -> None:
        """Advances the constraint by generated ids, and charges the time.

        Raises:
            GrammarFailed: the grammar does not allow an id, has reached a limit, or has used up its
                time.
        """
        begin = time.thread_time()
        self.constraint.accept(token_ids)
        self._charge(time.thread_time() - begin)

    def _charge(self, seconds: float) -> None:
        self._excess_s = max(0.0, self._excess_s + seconds - _SECONDS_A_TOKEN)
        if self._excess_s > _MAX_EXCESS_SECONDS:
            raise GrammarFailed(
                "the grammar takes too long for a token; make it smaller or less ambiguous"
            )


def _is_forcible(request: GenerateRequest) -> bool:
    """Returns whether forced tokens may be appended without sampling.

    They may not if the request's other fields need the logits or the count of every token.
    """
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
