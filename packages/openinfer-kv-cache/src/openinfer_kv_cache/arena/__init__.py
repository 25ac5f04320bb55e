"""Where blocks come from: one pool, or an arena of slabs that several groups share."""
