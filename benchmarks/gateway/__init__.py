"""Benchmarks of HTTP and gRPC: frameworks, the gateway, Envoy, floods of requests."""
