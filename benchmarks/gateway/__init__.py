"""Benchmarks of HTTP and gRPC: frameworks, the gateway, Envoy, and floods of requests."""
