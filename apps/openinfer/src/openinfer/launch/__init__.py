"""Turns the name of a model and options into a launch spec."""
