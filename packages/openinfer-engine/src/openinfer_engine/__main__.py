"""`python -m openinfer_engine`: one engine process."""

import logging
import os
import sys

from openinfer_engine.process._main import main

if __name__ == "__main__":
    status = main()
    # Everything is closed. Taking modules apart would keep the parent waiting: with torch, 0.5 s.
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
