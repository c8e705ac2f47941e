"""Connection limits by kind of caller: clients, members, and strangers.

A stranger is a connection that has not sent a valid `Hello` message. This module decides which new
connection is refused, and which stranger is closed for a new one. Members have proved that they
know the cluster key. They are never refused, and an eighth of the connections is reserved for them.
The transport limits the total.
"""

from collections import Counter
from ipaddress import ip_network
from typing import Generic, TypeVar

from msgspec import Struct

__all__ = ["Limits", "ConnectionPlaces", "group_of"]

_MAX_STRANGERS = 256
_STRANGERS_PER_GROUP = 64

SessionT = TypeVar("SessionT")


class Limits(Struct, frozen=True):
    """Maximum number of connections for each kind of caller."""

    clients: int
    per_address: int
    per_token: int
    strangers: int
    """Most connections without a hello; one more closes the oldest."""
    strangers_per_address: int
    """Most connections without a hello from one address; one more closes its oldest."""

    @classmethod
    def of(cls, most: int, per_address: int, per_token: int) -> "Limits":
        """Divide `most` connections: three quarters for clients, an eighth for those without a
        valid `Hello`."""
        strangers = min(most // 8, _MAX_STRANGERS)
        return cls(
            clients=most * 3 // 4,
            per_address=per_address,
            per_token=per_token,
            strangers=strangers,
            strangers_per_address=max(1, min(strangers // 2, _STRANGERS_PER_GROUP)),
        )


class ConnectionPlaces(Generic[SessionT]):
    """Open connections by kind of caller: client, member, or stranger (without a valid `Hello`).

    Adding a connection visits all strangers. The other calls take constant time.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._strangers: dict[SessionT, str] = {}
        """Addresses of strangers, the oldest connection first."""
        self._clients: dict[SessionT, tuple[str, str]] = {}
        self._by_address: Counter[str] = Counter()
        self._by_token: Counter[str] = Counter()

    def arrived(self, session: SessionT, host: str) -> SessionT | None:
        """Add a connection without a `Hello` yet; return an older such connection to close for it,
        if any."""
        group = group_of(host)
        self._strangers[session] = group
        ours = [each for each, other in self._strangers.items() if other == group]
        if len(ours) > self._limits.strangers_per_address:
            return ours[0]
        if len(self._strangers) > self._limits.strangers:
            return next(iter(self._strangers))
        return None

    def take_member(self, session: SessionT) -> None:
        """Record that a connection has proved to be from a member of the cluster."""
        self._strangers.pop(session, None)

    def take_client(self, session: SessionT, token: str) -> str | None:
        """Record that a connection has a client's valid token; return an error text when a limit is
        exceeded."""
        group = self._strangers.pop(session, "")
        limits = self._limits
        if len(self._clients) >= limits.clients:
            return f"connections of clients must be at most {limits.clients}; raise max_connections"
        if self._by_address[group] >= limits.per_address:
            return (
                f"connections from {group} must be at most {limits.per_address}; "
                "raise max_connections_per_address"
            )
        if self._by_token[token] >= limits.per_token:
            return (
                f"connections with the token {token!r} must be at most {limits.per_token}; "
                "raise max_connections_per_token"
            )
        self._clients[session] = group, token
        self._by_address[group] += 1
        self._by_token[token] += 1
        return None

    def left(self, session: SessionT) -> None:
        """Remove a closed connection from the counts."""
        self._strangers.pop(session, None)
        held = self._clients.pop(session, None)
        if held is None:
            return
        for counts, name in zip((self._by_address, self._by_token), held, strict=True):
            counts[name] -= 1
            if not counts[name]:
                del counts[name]


def group_of(host: str) -> str:
    """Return the network of one subscriber: an IPv4 address, or the /64 network of an IPv6
    address."""
    if ":" not in host:
        return host
    try:
        return str(ip_network((host.partition("%")[0], 64), strict=False))
    except ValueError:
        return host
