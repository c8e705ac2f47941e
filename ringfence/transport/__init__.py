"""Transports of messages between hosts: their common interface and settings.

This package imports little. `udp` has the transports over QUIC, for trio and for asyncio. `quic`
has the protocol itself, `memory` the transport of tests and simulations, and `tls` certificates.
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
