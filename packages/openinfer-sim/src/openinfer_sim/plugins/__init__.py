"""Plug-ins of the application: `openinfer sim` and `openinfer serve --engine sim`."""
