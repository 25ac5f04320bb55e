"""The log of the server's processes: on standard error, with the time of day."""

import logging
import sys


def start_logging(level: str = "info") -> None:
    """Starts logging; `level` is a value of --log-level."""
    logging.basicConfig(
        level=level.upper(),
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(message)s",
        datefmt="%H:%M:%S",
    )
