"""`python -m openinfer_sim`: the command `openinfer sim` without the application."""

import sys

from openinfer_sim.plugins._command import main

if __name__ == "__main__":
    sys.exit(main())
