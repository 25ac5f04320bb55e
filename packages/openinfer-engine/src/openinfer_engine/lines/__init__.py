"""Model lines: their interface, and finding the one that serves a checkpoint."""
