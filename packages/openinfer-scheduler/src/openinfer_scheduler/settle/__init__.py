"""What the result of a step does to its sequences."""
