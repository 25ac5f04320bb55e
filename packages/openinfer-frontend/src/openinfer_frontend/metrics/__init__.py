"""Counters that front processes share, and the page at `/metrics`."""
