"""Which requests the scheduler accepts, and which waiting sequences start."""
