"""Work recorded once and replayed with one launch."""

from collections.abc import Callable
from typing import Protocol, TypeVar

import torch

T = TypeVar("T")


class Recorder(Protocol):
    """Turns work on a device into something that can be repeated for less."""

    def __call__(self, work: Callable[[], T], /) -> Callable[[], T]:
        """Returns what repeats `work`, and returns the same tensors with new contents each time.

        Args:
            work: enqueues operations whose shapes, addresses and launches are always the same. It
                may or may not take effect here.
        """
        ...


def repeat_as_is(work: Callable[[], T]) -> Callable[[], T]:
    """A `Recorder` that records nothing: every repetition runs the work."""
    return work


class CudaGraphs:
    """A `Recorder` whose work becomes a CUDA graph. Use from one thread.

    All graphs share one pool of memory, so none may leave a result there that another one reads;
    what `work` returns stays its own.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, work: Callable[[], T], /) -> Callable[[], T]:
        """Captures the work; nothing of it runs yet."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):
            # Relaxed: kernels may be loaded, and memory allocated, while this thread captures.
            graph.capture_begin(pool=self._pool, capture_error_mode="relaxed")
            try:
                result = work()
            finally:
                graph.capture_end()

        def replay() -> T:
            graph.replay()
            return result

        return replay
