"""Gateway: a client of the cluster with an HTTP and a gRPC port, for programs not in Python.

Proxies (Envoy, nginx, Caddy, Traefik, HAProxy) and programs in other languages send checks to it.
It forwards them to the owners. It needs the extra `gateway`. `ringfence gateway` and `ringfence
node --gateway` start it.
"""

from ringfence.gateway.process.settings import GatewaySettings, load_gateway_settings

__all__ = ["GatewaySettings", "load_gateway_settings"]
