"""HTTP: connections, the server, one exchange of request and response."""
