"""Where a sequence leaves points at which it, or one that begins alike, can be taken up again."""

from bisect import bisect_right

from openinfer_kv_cache._keys import BlockKeys
from openinfer_kv_cache.groups._cache_group import Resume


class ResumePoints:
    """The resume points of one sequence in one group, fixed by what is known when it is opened.

    Attributes:
        output_stride: positions between two copies of a growing output's state; None: no copies.
        num_known: tokens known when the sequence was opened; output comes behind.
    """

    __slots__ = ("_every", "_fixed", "num_known", "output_stride")

    def __init__(self, resume: Resume, alignment: int, keys: BlockKeys) -> None:
        self.num_known = keys.num_tokens
        last = (self.num_known - 1) // alignment * alignment
        points = {last}
        if resume.at_hints:
            points.update(
                min(hint, last) // alignment * alignment for hint in keys.boundaries.tolist()
            )
        self._fixed = sorted(point for point in points if point > 0)
        self._every = _rounded_up(resume.every_tokens, alignment)
        self.output_stride = _rounded_up(resume.output_tokens, alignment)

    def after(self, position: int) -> int | None:
        """The first resume point beyond a position, or None; those of growing output left out."""
        found = None
        index = bisect_right(self._fixed, position)
        if index < len(self._fixed):
            found = self._fixed[index]
        if self._every is not None:
            multiple = (position // self._every + 1) * self._every
            found = multiple if found is None else min(found, multiple)
        return found

    def stop_after(self, position: int) -> int | None:
        """The first position beyond `position` at which a state is to be copied, or None."""
        found = self.after(position)
        if self.output_stride is not None:
            start = max(position, self.num_known)
            multiple = (start // self.output_stride + 1) * self.output_stride
            found = multiple if found is None else min(found, multiple)
        return found


def _rounded_up(num_tokens: int | None, alignment: int) -> int | None:
    return None if num_tokens is None else -(-num_tokens // alignment) * alignment
