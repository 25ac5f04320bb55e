"""Traces: files for Perfetto that show what an engine did when."""
