"""Work captured once and replayed with one launch."""

from collections.abc import Callable
from typing import Protocol, TypeVar

import torch

T = TypeVar("T")


class Capture(Protocol):
    """Turns work on a device into something that is cheaper to repeat."""

    def __call__(self, work: Callable[[], T], /) -> Callable[[], T]:
        """Returns a function that repeats `work`.

        The function returns the same tensors every time, with new contents.

        Args:
            work: Enqueues operations. Their shapes, addresses and launches are always the same.
                The work may or may not run during the capture.
        """
        ...


class CudaGraphs:
    """A `Capture` that makes a CUDA graph of each work. Use from one thread.

    All graphs share one pool of memory, so no graph may leave a result there for another one. The
    tensors that `work` returns stay allocated.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, work: Callable[[], T], /) -> Callable[[], T]:
        """Captures the work without running it."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):
            # "relaxed" allows kernels to be loaded and memory to be allocated during the capture.
            graph.capture_begin(pool=self._pool, capture_error_mode="relaxed")
            try:
                result = work()
            finally:
                graph.capture_end()

        def replay() -> T:
            graph.replay()
            return result

        return replay
