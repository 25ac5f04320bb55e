"""How the server's own processes write their log: to standard error, with the time of day."""

import logging
import sys


def start_logging(level: str = "info") -> None:
    """Writes what has at least this level; `level` is one of --log-level's."""
    logging.basicConfig(
        level=level.upper(),
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(message)s",
        datefmt="%H:%M:%S",
    )
