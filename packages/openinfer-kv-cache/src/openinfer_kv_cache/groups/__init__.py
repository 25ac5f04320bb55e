"""Cache groups: their description, and a sequence's blocks in full, window and state groups."""
