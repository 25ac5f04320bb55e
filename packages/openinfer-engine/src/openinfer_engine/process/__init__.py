"""The engine process: its start, its socket, its server, its clients and its supervisor."""
