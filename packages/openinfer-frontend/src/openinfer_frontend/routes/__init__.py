"""The handlers of all paths, and the table of routes."""
