"""One live request with a grammar: its constraint, and what that costs the step thread."""

import time
from collections.abc import Sequence

from openinfer_contract import GenerateRequest, Sampling
from openinfer_grammar import Constraint, GrammarFailed

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
    """

    def __init__(self, request: GenerateRequest, constraint: Constraint) -> None:
        self.request = request
        self.constraint = constraint
        self.is_forcible = _is_forcible(request)
        self._excess_s = 0.0

    def charge_mask(self) -> None:
        """Its constraint has just filled a mask.

        Raises:
            GrammarFailed: that took too long.
        """
        self._charge(self.constraint.fill_seconds)

    def accept(self, token_ids: Sequence[int]) -> None:
        """Goes on by the ids that were generated.

        Raises:
            GrammarFailed: one is not allowed, or the grammar has run into a limit, or takes too
                long.
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
