"""How many threads a forward pass gains from."""

from openinfer_engine import physical_cores

_ONE_CORE_WEIGHTS_BYTES = 32 << 20


def useful_threads(weights_bytes: int) -> int:
    """Threads that a forward pass over so many bytes of weights gains from.

    One core streams a small model in well under a millisecond; a second thread would spend longer
    at the barriers between its products, and far longer when something else wants the core.
    """
    return 1 if weights_bytes < _ONE_CORE_WEIGHTS_BYTES else physical_cores()
