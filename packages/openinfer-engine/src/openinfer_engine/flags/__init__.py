"""Flags of a command line, and the options structs that they come from."""
