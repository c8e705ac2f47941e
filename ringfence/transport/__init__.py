"""Messages between hosts: what every transport offers, and the values that configure one.

Light to import. QUIC is in `udp_trio` and `udp_asyncio` (shells around `endpoint`), the transport
of tests and simulations in `memory`, certificates in `tls` and `authority`: import them by name.
"""

from ringfence.transport.interface import (
    Accept,
    Address,
    Connection,
    Handler,
    Timer,
    Transport,
)
from ringfence.transport.settings import Settings

__all__ = [
    "Accept",
    "Address",
    "Connection",
    "Handler",
    "Settings",
    "Timer",
    "Transport",
]
