"""What every test run of this repository shares."""

import os

# Before torch is imported. The shapes of the tests are too small to gain from a second thread, and
# threads that spin for one another cost ten times the run on a machine that does something else.
os.environ.setdefault("OMP_NUM_THREADS", "1")
