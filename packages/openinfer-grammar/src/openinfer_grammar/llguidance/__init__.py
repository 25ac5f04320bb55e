"""The default backend, over llguidance."""
