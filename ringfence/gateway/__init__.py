"""The gateway: an embedded client with an HTTP and a gRPC port, for everybody who is not Python.

Proxies (Envoy, nginx, Caddy, Traefik, HAProxy) and other languages ask it; it asks the owners. It
needs the extra `gateway`, and is started by `ringfence gateway` or `ringfence node --gateway`.
"""

from ringfence.gateway.process.settings import GatewaySettings, load_gateway_settings

__all__ = ["GatewaySettings", "load_gateway_settings"]
