"""The order in which cached blocks are evicted: least recently used, or a policy's."""
