"""`openinfer serve`: the engine process, the front processes and what watches them."""
