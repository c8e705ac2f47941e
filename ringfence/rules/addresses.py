"""Grouping of client addresses: which IP addresses share one counter.

An IPv6 host usually has a whole network of addresses. If each address had its own counter, one host
could create any number of counters.
"""

from ipaddress import IPv4Address, ip_address, ip_network

__all__ = ["group_address"]


def group_address(address: str, ipv6_prefix: int = 64) -> str:
    """Return the IPv6 network of `ipv6_prefix` bits that contains `address`, or the IPv4 address.

    `2001:db8::17` becomes `2001:db8::/64`. An IPv4-mapped IPv6 address becomes its IPv4 address.
    Other text, such as a host or user name, is returned unchanged.
    Raises `ValueError` unless the prefix is 1 to 128.
    """
    if not 1 <= ipv6_prefix <= 128:
        raise ValueError(f"ipv6_prefix must be 1 to 128, got {ipv6_prefix}; use 64, one subscriber")
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ip_network((parsed, ipv6_prefix), strict=False))
