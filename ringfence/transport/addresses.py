"""Functions for addresses: text form, errors, loopback, and numeric hosts."""

import errno
from functools import lru_cache
from ipaddress import ip_address

from ringfence.transport.interface import Address

__all__ = ["format_address", "is_loopback", "listen_error", "numeric_host"]


def format_address(address: Address) -> str:
    """Return `host:port`, with brackets around an IPv6 host."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listen_error(address: Address, error: OSError, protocol: str) -> str:
    """Describe why a socket of `protocol` could not be bound, and what to change."""
    where = f"cannot listen on {format_address(address)}"
    match error.errno:
        case errno.EADDRINUSE:
            return (
                f"{where}: another program has this {protocol} port; stop it or choose another port"
            )
        case errno.EADDRNOTAVAIL:
            return f"{where}: no interface of this host has that address; choose another address"
        case errno.EACCES | errno.EPERM:
            return f"{where}: not permitted; choose a port from 1024 on"
        case _:
            return f"{where}: {error.strerror or error}; choose another address of this host"


def is_loopback(address: Address) -> bool:
    """Whether a numeric address belongs to the loopback interface."""
    return address[0].startswith("127.") or address[0] == "::1"


@lru_cache(1024)
def numeric_host(host: str) -> str | None:
    """Return an IP address in its canonical form; None for a name."""
    try:
        return str(ip_address(host))
    except ValueError:
        return None
