"""Number of threads of a forward pass on the CPU."""

from openinfer_engine import physical_cores

_ONE_CORE_WEIGHTS_BYTES = 32 << 20


def useful_threads(weights_bytes: int) -> int:
    """Returns the number of threads that make a forward pass fastest.

    One core reads a small model in well under a millisecond. A second thread would lose more time
    at the barriers between matrix products, and far more if another process used its core.

    Args:
        weights_bytes: Bytes of the model's weights.
    """
    return 1 if weights_bytes < _ONE_CORE_WEIGHTS_BYTES else physical_cores()
