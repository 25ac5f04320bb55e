"""Traces of what an engine did when, as files that Perfetto opens."""
