"""Places for connections: how many of a node's connections each kind of caller may hold.

Decides which newcomer is refused and which stranger makes room. A stranger is a connection that has
not sent its hello yet. Members have proved that they know the cluster key; they are refused nothing
here, and an eighth of the places is never given to others. The transport bounds all together.
"""

from collections import Counter
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Generic, TypeVar

__all__ = ["Limits", "Places", "group_of"]

_MOST_STRANGERS = 256
_STRANGERS_PER_GROUP = 64

SessionT = TypeVar("SessionT")


@dataclass(frozen=True, slots=True)
class Limits:
    """Most connections, by kind of caller."""

    clients: int
    per_address: int
    per_token: int
    strangers: int
    """One more closes the oldest of them."""
    strangers_per_address: int
    """One more from the same address closes the oldest of that address."""

    @classmethod
    def of(cls, most: int, per_address: int, per_token: int) -> "Limits":
        """Share `most` places out: three quarters for clients, an eighth for strangers."""
        strangers = min(most // 8, _MOST_STRANGERS)
        return cls(
            clients=most * 3 // 4,
            per_address=per_address,
            per_token=per_token,
            strangers=strangers,
            strangers_per_address=max(1, min(strangers // 2, _STRANGERS_PER_GROUP)),
        )


class Places(Generic[SessionT]):
    """Who holds which place. Cost: constant, but for a stranger too many."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._strangers: dict[SessionT, str] = {}
        """Their addresses, the oldest first."""
        self._clients: dict[SessionT, tuple[str, str]] = {}
        self._by_address: Counter[str] = Counter()
        self._by_token: Counter[str] = Counter()

    def arrived(self, session: SessionT, host: str) -> SessionT | None:
        """Take a new connection; return the stranger that must be closed for it, if any."""
        group = group_of(host)
        self._strangers[session] = group
        ours = [each for each, other in self._strangers.items() if other == group]
        if len(ours) > self._limits.strangers_per_address:
            return ours[0]
        if len(self._strangers) > self._limits.strangers:
            return next(iter(self._strangers))
        return None

    def take_member(self, session: SessionT) -> None:
        """A stranger has proved to be a member."""
        self._strangers.pop(session, None)

    def take_client(self, session: SessionT, token: str) -> str | None:
        """Give a stranger with a good token a client's place; return why not, if there is none."""
        group = self._strangers.pop(session, "")
        limits = self._limits
        if len(self._clients) >= limits.clients:
            return f"the node has {limits.clients} connections of clients, its most"
        if self._by_address[group] >= limits.per_address:
            return f"the node has {limits.per_address} connections from {group}, its most"
        if self._by_token[token] >= limits.per_token:
            return f"the node has {limits.per_token} connections with the token {token!r}, its most"
        self._clients[session] = group, token
        self._by_address[group] += 1
        self._by_token[token] += 1
        return None

    def left(self, session: SessionT) -> None:
        """Forget a connection."""
        self._strangers.pop(session, None)
        held = self._clients.pop(session, None)
        if held is None:
            return
        for counts, name in zip((self._by_address, self._by_token), held, strict=True):
            counts[name] -= 1
            if not counts[name]:
                del counts[name]


def group_of(host: str) -> str:
    """Name what one subscriber holds: an IPv4 address, or the /64 network of an IPv6 address."""
    if ":" not in host:
        return host
    try:
        return str(ip_network((host.partition("%")[0], 64), strict=False))
    except ValueError:
        return host
