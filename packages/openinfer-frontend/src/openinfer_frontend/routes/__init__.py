"""The handlers of every path, and the table of routes."""
