"""Effects: actions that the membership state machine returns and its caller performs."""

from typing import Protocol, TypeAlias

from msgspec import Struct

from gossip.datagrams.messages import Message
from gossip.members.record import Address, Record

__all__ = ["Changed", "Conflict", "Effect", "Exchange", "Send", "ProbeClock"]


class Send(Struct, frozen=True):
    """Effect: send a datagram."""

    to: Address
    message: Message


class Exchange(Struct, frozen=True):
    """Effect: send the member list to an address, and pass the answer to `Membership.merge`."""

    with_: Address


class Changed(Struct, frozen=True):
    """Effect: report that the record of a member has changed."""

    before: Record | None
    after: Record


class Conflict(Struct, frozen=True):
    """Effect: report that another node uses the name of this node."""

    record: Record
    """Record of the other node."""
    steps_down: bool
    """Whether this node must stop."""


Effect: TypeAlias = Send | Exchange | Changed | Conflict


class ProbeClock(Protocol):
    """Interface of the cluster clock that probes read, and in which they record measured
    offsets."""

    def read(self, now: int) -> int:
        """Return the cluster time in ns."""

    def sample(self, name: str, offset_ns: int, rtt_ns: int, now: int) -> None:
        """Record the measured offset of a member's clock from this clock; its error is up to
        `rtt_ns` / 2."""
