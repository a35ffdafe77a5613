"""The HTTP edge: connections, the server, the routes, and the answers that go out."""
