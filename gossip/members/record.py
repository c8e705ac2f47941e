"""What is said of one member, and which of two sayings holds.

Only the member itself raises its generation (at boot) and its incarnation (to refute, or to change
what it says of itself); others may only accuse it, within one incarnation. So the larger of
(generation, incarnation, status) always holds, in whatever order the two are heard.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

__all__ = ["Address", "MAX_NAME", "Record", "Status"]

Address: TypeAlias = tuple[str, int]
"""Host and UDP port."""

MAX_NAME = 255
"""Most characters of each text in a record. All together must fit into a datagram, see `codec`."""


class Status(IntEnum):
    """How a member stands; of equal generation and incarnation the higher one holds."""

    JOINING = 0
    """Up, and fetching its counters; not asked yet."""
    ALIVE = 1
    LEAVING = 2
    """Handing its counters over; still asked, for it knows where they are."""
    SUSPECT = 3
    """Did not answer, and has not refuted it yet; still asked."""
    DEAD = 4
    LEFT = 5
    """Gone for good, by its own will."""


_ROUTED = (Status.ALIVE, Status.LEAVING, Status.SUSPECT)
_PLACED = (Status.JOINING, Status.ALIVE, Status.SUSPECT)


@dataclass(frozen=True, slots=True)
class Record:
    """One member at one moment."""

    name: str
    host: str
    port: int
    datacenter: str
    zone: str
    weight: float
    generation: int
    """Milliseconds since 1970 at its boot: a restart always wins."""
    incarnation: int
    status: Status
    forward_only: bool = False
    """Takes no part in the ring, by its own decision: it flaps, or its clock is off."""
    version: str = ""
    """Of the software."""
    accuser: str = ""
    """Who raised the suspicion, while `SUSPECT`."""

    @property
    def address(self) -> Address:
        """Where it listens."""
        return self.host, self.port

    @property
    def rank(self) -> tuple[int, int, int]:
        """What decides between two records of one member."""
        return self.generation, self.incarnation, self.status

    @property
    def is_routed(self) -> bool:
        """Whether it is in the ring by which checks are sent."""
        return self.status in _ROUTED and not self.forward_only

    @property
    def is_placed(self) -> bool:
        """Whether it should have counters: a member that joins gets them before it is asked, and
        one that leaves is asked until it has given them away."""
        return self.status in _PLACED and not self.forward_only

    @property
    def is_gone(self) -> bool:
        """Whether nobody should be asked there."""
        return self.status >= Status.DEAD

    def replaces(self, other: "Record") -> bool:
        """Whether this holds, and not the other: a total order, so that all members agree.

        Two nodes under one name, booted in one millisecond, may differ at equal rank; then the
        larger address holds, as it is the smaller one that steps down.
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
