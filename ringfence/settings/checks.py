"""Validation of single settings: ranges of numbers, addresses, and whether other hosts have
access.
"""

from collections.abc import Mapping
from ipaddress import ip_address
from math import inf

from ringfence.client.url import DEFAULT_PORT, parse_address
from ringfence.errors import ConfigError
from ringfence.transport.interface import Address

__all__ = [
    "format_address",
    "is_ip",
    "is_loopback",
    "is_wildcard",
    "require_address",
    "require_ranges",
]


def require_ranges(settings: object, ranges: Mapping[str, tuple[float, float]]) -> None:
    """Raise `ConfigError` with a line for each setting outside its range.

    A range includes both ends, and its upper end may be infinite.
    """
    problems: list[str] = []
    for name, (least, most) in ranges.items():
        value = getattr(settings, name)
        if not least <= value <= most:
            expected = f"at least {least}" if most == inf else f"from {least} to {most}"
            problems.append(f"{name} must be {expected}, got {value}; choose another value")
    if problems:
        raise ConfigError("\n".join(problems))


def require_address(
    name: str, text: str, default_port: int = DEFAULT_PORT, *, allow_port_0: bool = False
) -> Address:
    """Parse the address in the setting `name`. Raises `ConfigError`, which names the setting."""
    try:
        host, port = parse_address(text, default_port)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error
    if port < 1 and not allow_port_0:
        raise ConfigError(f"{name} must have a port from 1 to 65535, got {text!r}; write HOST:PORT")
    return host, port


def format_address(address: Address) -> str:
    """Format an address as `HOST:PORT`, with an IPv6 address in brackets."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_ip(host: str) -> bool:
    """Whether a host is given as an IP address, not as a name."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether only this host can connect to a listener at `host`."""
    return host == "localhost" or (is_ip(host) and ip_address(host).is_loopback)


def is_wildcard(host: str) -> bool:
    """Whether a host, such as 0.0.0.0, means all network addresses of this machine."""
    return is_ip(host) and ip_address(host).is_unspecified
