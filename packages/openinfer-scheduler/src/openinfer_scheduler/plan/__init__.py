"""How one step is put together."""
