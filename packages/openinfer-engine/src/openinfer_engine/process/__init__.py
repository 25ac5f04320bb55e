"""The engine process: its start, its socket and server, its clients and its supervisor."""
