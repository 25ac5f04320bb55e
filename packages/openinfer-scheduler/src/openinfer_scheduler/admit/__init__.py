"""Which requests the scheduler accepts, and which waiting sequences it starts."""
