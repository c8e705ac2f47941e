"""The gateway's gRPC port: HTTP/2, Envoy's rate limit service, health."""
