"""What members say to each other in datagrams; `codec` turns it into bytes."""

from dataclasses import dataclass
from typing import TypeAlias

from gossip.members.record import Address, Record

__all__ = ["Ack", "Gossip", "Message", "Nack", "Ping", "PingReq"]


@dataclass(frozen=True, slots=True)
class Ping:
    """Are you there?"""

    sender: str
    generation: int
    """The sender's."""
    seq: int
    target: str
    """Who is meant: another node may have got the address since."""
    digest: int
    """The sender's view, see `Membership.digest`."""
    updates: tuple[Record, ...] = ()


@dataclass(frozen=True, slots=True)
class Ack:
    """I am; or, relayed, it is."""

    sender: str
    generation: int
    seq: int
    digest: int
    stamp: int
    """The sender's cluster clock when the ping came: the only instant that crosses the wire."""
    delay: int = 0
    """How long the sender took to answer, in ns."""
    updates: tuple[Record, ...] = ()


@dataclass(frozen=True, slots=True)
class PingReq:
    """Ask somebody else whether it is there."""

    sender: str
    generation: int
    seq: int
    target: str
    address: Address
    updates: tuple[Record, ...] = ()


@dataclass(frozen=True, slots=True)
class Nack:
    """It has not answered me either: so your own network is well."""

    sender: str
    generation: int
    seq: int
    updates: tuple[Record, ...] = ()


@dataclass(frozen=True, slots=True)
class Gossip:
    """News, and nothing else."""

    sender: str
    generation: int
    updates: tuple[Record, ...] = ()


Message: TypeAlias = Ping | Ack | PingReq | Nack | Gossip
