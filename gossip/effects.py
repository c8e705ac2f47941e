"""What the membership core wants done; the shell does it."""

from dataclasses import dataclass
from typing import Protocol, TypeAlias

from gossip.datagrams.messages import Message
from gossip.members.record import Address, Record

__all__ = ["Changed", "Conflict", "Effect", "Exchange", "Send", "Stamps"]


@dataclass(frozen=True, slots=True)
class Send:
    """Send a datagram."""

    to: Address
    message: Message


@dataclass(frozen=True, slots=True)
class Exchange:
    """Give our list of members to whoever is there, and `merge` the list that comes back."""

    with_: Address


@dataclass(frozen=True, slots=True)
class Changed:
    """A member is not what it was."""

    before: Record | None
    after: Record


@dataclass(frozen=True, slots=True)
class Conflict:
    """Another node has our name."""

    record: Record
    """The other one."""
    steps_down: bool
    """Whether it is we who must stop."""


Effect: TypeAlias = Send | Exchange | Changed | Conflict


class Stamps(Protocol):
    """The cluster's clock, as far as probes need and feed it."""

    def read(self, now: int) -> int:
        """The cluster's time in ns."""

    def sample(self, name: str, offset_ns: int, rtt_ns: int, now: int) -> None:
        """A member's clock stands `offset_ns` from ours, give or take half of `rtt_ns`."""
