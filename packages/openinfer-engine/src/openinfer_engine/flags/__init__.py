"""Command-line flags: the tables, the kinds of values, and the flags of an engine."""
