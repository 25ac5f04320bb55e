"""Choosing the back end of an op, and reporting the choice."""
