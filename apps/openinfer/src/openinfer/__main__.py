"""`python -m openinfer`."""

import sys

from openinfer._cli import main

sys.exit(main())
