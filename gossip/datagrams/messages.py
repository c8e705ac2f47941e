"""Gossip messages that members exchange in datagrams; `codec` encodes them."""

from typing import TypeAlias

from msgspec import Struct

from gossip.members.record import Address, Record

__all__ = ["Ack", "Gossip", "Message", "Nack", "Ping", "PingReq"]


class Ping(Struct, frozen=True):
    """Probe of a member, which answers with `Ack`."""

    sender: str
    generation: int
    """Boot generation of the sender."""
    seq: int
    target: str
    """Name of the probed member; another node may use the address by now."""
    digest: int
    """Hash of the sender's member table, see `Membership.digest`."""
    updates: tuple[Record, ...] = ()


class Ack(Struct, frozen=True):
    """Answer to a `Ping`; in an indirect probe, a helper forwards it."""

    sender: str
    generation: int
    seq: int
    digest: int
    stamp: int
    """Cluster clock of the sender at arrival of the ping; the only instant on the wire."""
    delay: int = 0
    """Time that the sender needed to answer, in ns."""
    updates: tuple[Record, ...] = ()


class PingReq(Struct, frozen=True):
    """Request to a helper to probe a third member, because a direct probe had no answer."""

    sender: str
    generation: int
    seq: int
    target: str
    address: Address
    updates: tuple[Record, ...] = ()


class Nack(Struct, frozen=True):
    """Answer of a helper in an indirect probe: the probed member did not answer, but the helper is
    alive."""

    sender: str
    generation: int
    seq: int
    updates: tuple[Record, ...] = ()


class Gossip(Struct, frozen=True):
    """Message that only carries membership updates."""

    sender: str
    generation: int
    updates: tuple[Record, ...] = ()


Message: TypeAlias = Ping | Ack | PingReq | Nack | Gossip
