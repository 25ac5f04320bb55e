"""From the name of a model to a launch spec."""
