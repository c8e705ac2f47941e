"""Client addresses as descriptor values: who counts as one client.

A host on IPv6 has a whole network of addresses to itself, so counting each address apart would let
it mint keys without end.
"""

from ipaddress import IPv4Address, ip_address, ip_network

__all__ = ["group_address"]


def group_address(address: str, ipv6_prefix: int = 64) -> str:
    """Name the client behind `address`: an IPv6 network of `ipv6_prefix` bits, or an IPv4 address.

    `2001:db8::17` becomes `2001:db8::/64`; IPv4 in an IPv6 coat becomes plain IPv4; text that is no
    address (a host or user name) stays as it is. Raises `ValueError` unless the prefix is 1 to 128.
    """
    if not 1 <= ipv6_prefix <= 128:
        raise ValueError(f"ipv6_prefix {ipv6_prefix} is not from 1 to 128; 64 is one subscriber")
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ip_network((parsed, ipv6_prefix), strict=False))
