"""`openinfer chat` and `openinfer complete`."""
