"""`python -m openinfer_engine`: one engine process."""

import sys

from openinfer_engine._process import main

if __name__ == "__main__":
    sys.exit(main())
