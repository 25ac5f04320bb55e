"""Counters shared by front processes, and the page at `/metrics`."""
