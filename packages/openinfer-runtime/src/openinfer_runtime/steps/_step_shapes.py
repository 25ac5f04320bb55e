"""The sizes that steps are padded to, so that a few captured steps serve all plans.

A step whose rows have one token each takes a decode shape, where tokens and sequences are the same
thing. Any other step takes a shape of tokens by sequences. Tokens cost arithmetic, so their sizes
are close together; further sequences cost next to nothing, so their sizes are far apart.
"""

from bisect import bisect_left
from dataclasses import dataclass

from openinfer_scheduler import StepPlan

MAX_TOKENS = 2048
"""Tokens of the largest captured step. Longer steps keep a device busy for longer than the host
takes to launch their kernels one by one."""

_DECODE = (1, 2, 4, *range(8, 64, 8), *range(64, 128, 16), *range(128, 513, 32))
_TOKENS = (16, 32, 64, 128, 256, 384, 512, 640, 768, 1024, 1152, 1280, 1536, 1792, MAX_TOKENS)
_SEQS = (1, 32, 512)
_SHARED = (8, 16, 32, 64, 96, 128, 192, 256, 384, 512)
_URGENT_SEQS = 8
_URGENT_TOKENS = 128


@dataclass(frozen=True, slots=True)
class StepShape:
    """Sizes of a step's tensors.

    Attributes:
        num_tokens: Tokens, padding included.
        num_seqs: Sequences, padding included.
        is_decode: Whether every sequence has one token.
        shares_prefixes: Whether attention reads the blocks that sequences share once for all of
            them.
    """

    num_tokens: int
    num_seqs: int
    is_decode: bool
    shares_prefixes: bool = False

    @property
    def max_seqlen_q(self) -> int:
        """Upper bound on the tokens of one sequence."""
        return 1 if self.is_decode else self.num_tokens


class StepShapes:
    """The shapes of one executor."""

    def __init__(self, *, max_num_seqs: int, max_num_tokens: int) -> None:
        """Chooses shapes for steps of at most `max_num_seqs` rows and `max_num_tokens` tokens."""
        self._decode = _up_to(_DECODE, max_num_seqs)
        self._shared = _up_to(_SHARED, max_num_seqs)
        self._seqs = _up_to(_SEQS, max_num_seqs)
        self._tokens = _up_to(_TOKENS, min(MAX_TOKENS, max_num_tokens))

    @property
    def max_num_seqs(self) -> int:
        """Sequences of the largest shape."""
        return self._seqs[-1]

    def of(self, plan: StepPlan, *, shares_prefixes: bool = False) -> StepShape | None:
        """Returns the smallest shape that holds a plan with rows; None if no shape does.

        Args:
            plan: Plan of the step.
            shares_prefixes: Whether rows of the step share blocks; then it is a decode step.
        """
        num_seqs = len(plan.rows)
        # Decode rows come first and have one token each.
        num_tokens = num_seqs if plan.rows[-1].token_ids is None else plan.num_tokens
        if num_tokens == num_seqs:
            size = _at_least(self._shared if shares_prefixes else self._decode, num_seqs)
            return None if size is None else StepShape(size, size, True, shares_prefixes)
        seqs, tokens = _at_least(self._seqs, num_seqs), _at_least(self._tokens, num_tokens)
        return None if seqs is None or tokens is None else StepShape(tokens, seqs, False)

    def is_urgent(self, shape: StepShape) -> bool:
        """Returns whether the first request may need a shape.

        Urgent shapes are the small ones, which gain most from being captured.
        """
        if shape.shares_prefixes:
            return False
        if shape.is_decode:
            return shape.num_seqs <= _URGENT_SEQS
        return shape.num_seqs == self._seqs[0] and shape.num_tokens <= _URGENT_TOKENS

    @property
    def count(self) -> int:
        """Number of shapes."""
        return len(self._decode) + len(self._shared) + len(self._seqs) * len(self._tokens)

    @property
    def max_num_tokens(self) -> int:
        """Tokens of the largest shape."""
        return self._tokens[-1]

    def all(self) -> list[StepShape]:
        """Returns every shape in the order of capture.

        Urgent shapes come first, then single prompts, decode steps, prompts with other rows, and
        decode steps that share prefixes.
        """
        decode = [StepShape(size, size, True) for size in self._decode]
        others = [StepShape(t, s, False) for s in self._seqs for t in self._tokens]
        alone, mixed = others[: len(self._tokens)], others[len(self._tokens) :]
        shared = [StepShape(size, size, True, True) for size in self._shared]
        return sorted(
            [*alone, *decode, *mixed, *shared], key=lambda shape: not self.is_urgent(shape)
        )


def _up_to(sizes: tuple[int, ...], limit: int) -> tuple[int, ...]:
    """Returns the sizes below the limit, then the limit itself or the largest size."""
    return (*(size for size in sizes if size < limit), min(limit, sizes[-1]))


def _at_least(sizes: tuple[int, ...], wanted: int) -> int | None:
    index = bisect_left(sizes, wanted)
    return sizes[index] if index < len(sizes) else None
