"""Request bodies and wire formats, by protocol."""
