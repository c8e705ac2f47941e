"""Membership record of one node, and the rule which of two records supersedes the other.

Only the member itself raises its generation (at boot) and its incarnation (to refute a suspicion or
to change its record). Other members may only raise the status within one incarnation. So the larger
(generation, incarnation, status) wins, whatever the order of arrival.
"""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeAlias

__all__ = ["Address", "MAX_NAME", "Record", "Status"]

Address: TypeAlias = tuple[str, int]
"""Host and UDP port."""

MAX_NAME = 255
"""Maximum length of each text. All texts together must fit into a datagram, see `codec`."""


class Status(IntEnum):
    """State of a member; with equal generation and incarnation the higher value wins."""

    JOINING = 0
    """Running and fetching its counters; receives no checks yet."""
    ALIVE = 1
    LEAVING = 2
    """Transferring its counters; still receives checks."""
    SUSPECT = 3
    """Did not answer a probe and has not refuted that; still receives checks."""
    DEAD = 4
    LEFT = 5
    """Left voluntarily and for good."""


_ROUTED = (Status.ALIVE, Status.LEAVING, Status.SUSPECT)
_PLACED = (Status.JOINING, Status.ALIVE, Status.SUSPECT)


@dataclass(frozen=True, slots=True)
class Record:
    """Membership record: description of one member at one moment."""

    name: str
    host: str
    port: int
    datacenter: str
    zone: str
    weight: float
    generation: int
    """Milliseconds since 1970 at boot; the record of a later boot wins."""
    incarnation: int
    status: Status
    forward_only: bool = False
    """Whether the member stays out of the ring by its own decision: flap damping or a bad clock."""
    version: str = ""
    """Software version."""
    accuser: str = ""
    """Member that raised the suspicion."""
    digest: int | None = field(default=None, init=False, repr=False, compare=False)
    """Hash in the digest of a member table; None before the first use."""

    @property
    def address(self) -> Address:
        """Address where the member listens."""
        return self.host, self.port

    @property
    def rank(self) -> tuple[int, int, int]:
        """Precedence among records of one member: the record with the larger rank wins."""
        return self.generation, self.incarnation, self.status

    @property
    def is_routed(self) -> bool:
        """Whether the member receives checks."""
        return self.status in _ROUTED and not self.forward_only

    @property
    def is_placed(self) -> bool:
        """Whether the member holds counters.

        A joining member receives counters before it receives checks. A leaving member receives
        checks until it has transferred its counters.
        """
        return self.status in _PLACED and not self.forward_only

    @property
    def is_gone(self) -> bool:
        """Whether the member is dead or has left."""
        return self.status >= Status.DEAD

    def replaces(self, other: "Record") -> bool:
        """Whether this record supersedes the other one; all members decide this in the same way.

        Two nodes with one name that booted in the same millisecond have equal ranks. Then the
        larger address wins, and the node with the smaller address stops.
        """
        if self.rank != other.rank:
            return self.rank > other.rank
        return self._content > other._content

    @property
    def _content(self) -> tuple[Address, str, str, float, bool, str]:
        return (
            self.address,
            self.datacenter,
            self.zone,
            self.weight,
            self.forward_only,
            self.version,
        )
