"""How the result of a step changes its sequences."""
