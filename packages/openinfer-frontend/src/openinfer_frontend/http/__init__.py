"""HTTP: the server, its connections, and one request with its response."""
