"""`openinfer serve`: starts and supervises the engine process and the front processes."""
