"""Check that no two listener settings need the same TCP port."""

from collections.abc import Sequence
from ipaddress import ip_address
from itertools import combinations

from msgspec import Struct

from ringfence.errors import ConfigError
from ringfence.transport.interface import Address

__all__ = ["Listener", "require_distinct"]


class Listener(Struct, frozen=True):
    """Range of TCP ports that one setting requests."""

    setting: str
    """Name of the setting, such as `http`."""
    address: Address
    count: int = 1
    """Number of ports, starting at that of the address."""

    def clashes_with(self, other: "Listener") -> bool:
        """Whether both listeners need the same port; port 0 means any free port."""
        first, second = self.address[1], other.address[1]
        if not (first and second) or not _share_a_host(self.address[0], other.address[0]):
            return False
        return first < second + other.count and second < first + self.count

    def __str__(self) -> str:
        host, port = self.address
        last = f" to {port + self.count - 1}" if self.count > 1 else ""
        return f"{self.setting} = {f'[{host}]' if ':' in host else host}:{port}{last}"


def require_distinct(listeners: Sequence[Listener]) -> None:
    """Raise `ConfigError`, which names both settings, when two listeners need the same port."""
    for one, other in combinations(listeners, 2):
        if one.clashes_with(other):
            raise ConfigError(
                f"{one.setting} and {other.setting} must have different ports, got {one} and "
                f"{other}; change one of them"
            )


def _share_a_host(one: str, other: str) -> bool:
    """Whether two hosts are equal, or one of them is a wildcard address."""
    hosts = ["127.0.0.1" if host == "localhost" else host.lower() for host in (one, other)]
    return hosts[0] == hosts[1] or any(_is_wildcard(host) for host in hosts)


def _is_wildcard(host: str) -> bool:
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False
