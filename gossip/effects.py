"""Effects: actions that the membership state machine asks its caller to perform."""

from dataclasses import dataclass
from typing import Protocol, TypeAlias

from gossip.datagrams.messages import Message
from gossip.members.record import Address, Record

__all__ = ["Changed", "Conflict", "Effect", "Exchange", "Send", "ProbeClock"]


@dataclass(frozen=True, slots=True)
class Send:
    """Send a datagram."""

    to: Address
    message: Message


@dataclass(frozen=True, slots=True)
class Exchange:
    """Send the member list to this address, and pass the answer to `merge`."""

    with_: Address


@dataclass(frozen=True, slots=True)
class Changed:
    """Report that the record of a member changed."""

    before: Record | None
    after: Record


@dataclass(frozen=True, slots=True)
class Conflict:
    """Report that another node uses the name of this one."""

    record: Record
    """Record of the other node."""
    steps_down: bool
    """Whether this node must stop."""


Effect: TypeAlias = Send | Exchange | Changed | Conflict


class ProbeClock(Protocol):
    """Cluster clock as probes use it: they read it and supply samples."""

    def read(self, now: int) -> int:
        """Return the cluster time in ns."""

    def sample(self, name: str, offset_ns: int, rtt_ns: int, now: int) -> None:
        """Add a sample: a member's offset from this clock, with an error of up to `rtt_ns` / 2."""
