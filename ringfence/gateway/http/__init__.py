"""The gateway's HTTP API: paths, bodies, forward auth, OpenAPI."""
