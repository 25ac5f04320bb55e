"""Cache groups: their description, and the blocks of a sequence in window and state groups."""
