"""Blocks of one group: free list, prefix index, reference counts, and the leases on them."""
