"""Resume points of one sequence: positions at which it, or one with the same prefix, can resume."""

from bisect import bisect_right

import numpy as np

from openinfer_kv_cache._keys import BlockKeys
from openinfer_kv_cache.groups._cache_group import Resume


class ResumePoints:
    """Resume points of one sequence in one group, fixed when the sequence is opened.

    Attributes:
        output_stride: positions between two copies of the state of growing output; None: no copies.
        num_known: number of tokens known when the sequence was opened; output follows them.
    """

    __slots__ = ("_every", "_fixed", "num_known", "output_stride")

    def __init__(self, resume: Resume, alignment: int, keys: BlockKeys) -> None:
        self.num_known = keys.num_tokens
        last = (self.num_known - 1) // alignment * alignment
        points = np.array([last], np.int64)
        if resume.at_hints:
            hints = np.minimum(keys.boundaries.astype(np.int64), last) // alignment * alignment
            points = np.unique(np.append(hints, last))
        self._fixed: list[int] = points[points > 0].tolist()
        self._every = _rounded_up(resume.every_tokens, alignment)
        self.output_stride = _rounded_up(resume.output_tokens, alignment)

    def after(self, position: int) -> int | None:
        """Returns the first resume point beyond a position, without those of growing output."""
        found = None
        index = bisect_right(self._fixed, position)
        if index < len(self._fixed):
            found = self._fixed[index]
        if self._every is not None:
            multiple = (position // self._every + 1) * self._every
            found = multiple if found is None else min(found, multiple)
        return found

    def stop_after(self, position: int) -> int | None:
        """Returns the first position beyond `position` at which a state is copied, or None."""
        found = self.after(position)
        if self.output_stride is not None:
            start = max(position, self.num_known)
            multiple = (start // self.output_stride + 1) * self.output_stride
            found = multiple if found is None else min(found, multiple)
        return found


def _rounded_up(num_tokens: int | None, alignment: int) -> int | None:
    return None if num_tokens is None else -(-num_tokens // alignment) * alignment
