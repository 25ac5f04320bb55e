"""Host memory: huge pages, and pinned copies to a device."""
