"""The number of prefill tokens that a step may take beside decode rows, learned from step times."""

MIN_PREFILL_TOKENS = 16
"""Prefill tokens that a step may always take: decode rows delay prompts but never stop them."""

_FORGETTING = 0.95
"""Weight of a measured step relative to the step after it."""
_SURPRISE_DECAY = 0.98
_AIM_AFTER_A_MISS = 0.9
_TOLERATED_MISSES = 0.005
_LEAST_AIM = 0.3
_GROWTH = 2


class PrefillPace:
    """Keeps 99 % of the gaps between the tokens of a sequence below a target.

    The gap is the duration of a step with decode rows. It is modelled as `base + slope * n` for n
    prefill tokens, fitted by least squares over the latest steps with exponentially decaying
    weights. The largest recent underestimate is added as a margin. The aim, a share of the target,
    falls with every step that misses the target and rises so slowly that misses stay well below
    1 %. Chunk sizes that were never tried are approached by doubling.

    If decode rows alone exceed the target, it cannot be kept. `MIN_PREFILL_TOKENS` per step remain
    then, so that prompts make progress.

    Args:
        target_s: the target in seconds.

    Attributes:
        max_tokens: prefill tokens that the next step with decode rows may take.
    """

    def __init__(self, target_s: float) -> None:
        self.max_tokens = MIN_PREFILL_TOKENS
        self._target_s = target_s
        self._aim = 0.9
        self._ceiling = MIN_PREFILL_TOKENS
        self._surprise = 0.0
        self._slope = 0.0
        self._base = 0.0
        # Weighted sums over the steps so far: 1, n, n * n, seconds, n * seconds.
        self._sums = (0.0, 0.0, 0.0, 0.0, 0.0)

    def record(self, num_tokens: int, duration_s: float, *, has_decode: bool) -> None:
        """Learns from a step with `num_tokens` prefill tokens that took `duration_s` seconds."""
        expected_s = self._base + self._slope * num_tokens
        if expected_s > 0.0:
            error = duration_s / expected_s - 1.0
            self._surprise = min(max(self._surprise * _SURPRISE_DECAY, error), 1.0)
        self._fit(num_tokens, duration_s)
        if has_decode and num_tokens:
            self._adjust_aim(num_tokens, is_missed=duration_s > self._target_s)
        self.max_tokens = self._largest()

    def _fit(self, num_tokens: int, duration_s: float) -> None:
        n = float(num_tokens)
        new = (1.0, n, n * n, duration_s, n * duration_s)
        self._sums = sums = tuple(  # type: ignore[assignment]
            _FORGETTING * old + term for old, term in zip(self._sums, new, strict=True)
        )
        weight, sum_n, sum_nn, sum_s, sum_ns = sums
        mean_n, mean_s = sum_n / weight, sum_s / weight
        variance = sum_nn / weight - mean_n * mean_n
        if variance > (1.0 + 0.02 * mean_n) ** 2:  # else the sizes are too alike to fit a slope
            self._slope = max(0.0, (sum_ns / weight - mean_n * mean_s) / variance)
        self._base = max(0.0, mean_s - self._slope * mean_n)

    def _adjust_aim(self, num_tokens: int, *, is_missed: bool) -> None:
        """Moves the aim and the largest size that may be tried."""
        if is_missed:
            self._aim = max(_LEAST_AIM, self._aim * _AIM_AFTER_A_MISS)
            self._ceiling = max(MIN_PREFILL_TOKENS, num_tokens // _GROWTH)
            return
        self._ceiling = max(self._ceiling, _GROWTH * num_tokens)
        if 2 * num_tokens > self.max_tokens:
            self._aim = min(1.0, self._aim * (1.0 + (1 - _AIM_AFTER_A_MISS) * _TOLERATED_MISSES))

    def _largest(self) -> int:
        """Returns the largest number of tokens whose expected step time is within the aim."""
        rest_s = self._aim * self._target_s / (1.0 + self._surprise) - self._base
        if rest_s <= 0.0:
            return MIN_PREFILL_TOKENS
        if self._slope * self._ceiling <= rest_s:
            return self._ceiling
        return max(MIN_PREFILL_TOKENS, int(rest_s / self._slope))
