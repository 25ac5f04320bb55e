"""The `openinfer` command and the commands that run and end: `doctor`, `warmup`."""
