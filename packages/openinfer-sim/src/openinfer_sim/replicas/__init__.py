"""One or several simulated engines, the router before them, and the event loop over all."""
