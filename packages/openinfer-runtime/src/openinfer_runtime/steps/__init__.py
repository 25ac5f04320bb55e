"""What a step runs on: the row table, step shapes and their buffers, prefix groups, results."""
