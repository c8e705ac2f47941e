"""Functions for addresses: text form, loopback, and numeric hosts."""

from functools import lru_cache
from ipaddress import ip_address

from ringfence.transport.interface import Address

__all__ = ["format_address", "is_loopback", "numeric_host"]


def format_address(address: Address) -> str:
    """Return `host:port`, with brackets around an IPv6 host."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


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
