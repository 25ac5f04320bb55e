"""`python -m openinfer_engine`: runs one engine process."""

import logging
import os
import sys

from openinfer_engine.process._main import main

if __name__ == "__main__":
    status = main()
    # Everything is closed already. Python's own shutdown takes 0.5 s with torch, and the parent
    # would wait for it.
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
