"""Steps: row table, shapes and their buffers, prefix groups, results."""
