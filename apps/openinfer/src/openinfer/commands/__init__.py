"""The `openinfer` command line, and the commands that start no server: `doctor`, `warmup`."""
