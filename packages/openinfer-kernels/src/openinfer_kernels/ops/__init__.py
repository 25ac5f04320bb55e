"""The ops, one folder each."""
