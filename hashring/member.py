"""Member of a ring: its name, data center, zone and weight.

Addresses, health and incarnations are not included, because they do not affect ownership.
"""

from collections.abc import Iterable
from itertools import islice
from operator import lt
from typing import NewType

from msgspec import Struct

from hashring.errors import ConflictingMembers, InvalidMember

__all__ = ["MAX_WEIGHT", "MIN_WEIGHT", "Member", "NodeId", "by_name"]

NodeId = NewType("NodeId", str)
"""Name of a node, unique in the whole cluster."""

MIN_WEIGHT = 0.25
MAX_WEIGHT = 4.0


class Member(Struct, frozen=True):
    """One node as the ring sees it: name, data center, zone and weight.

    Raises `InvalidMember` when a field is out of range.
    """

    name: NodeId
    datacenter: str = "dc1"
    """Data center. All members of one data center share a ring."""
    zone: str = ""
    """Failure zone in the data center. All members without a zone form one zone."""
    weight: float = 1.0
    """Relative share of the shards, from 0.25 to 4."""

    def __post_init__(self) -> None:
        _require_text("name", self.name)
        _require_text("datacenter", self.datacenter)
        if self.zone:
            _require_text("zone", self.zone)
        if not MIN_WEIGHT <= self.weight <= MAX_WEIGHT:  # The comparison is also False for NaN.
            raise InvalidMember(
                f"weight of {self.name!r} is {self.weight}; use {MIN_WEIGHT} to {MAX_WEIGHT}"
            )


def by_name(members: Iterable[Member]) -> tuple[Member, ...]:
    """Sort members by name, and remove exact duplicates.

    Raises `ConflictingMembers` when two members share a name but differ otherwise.
    """
    members = tuple(members)
    names = [member.name for member in members]
    if all(map(lt, names, islice(names, 1, None))):
        return members  # In large clusters, most members come in this order.
    found: dict[NodeId, Member] = {}
    for member in members:
        if found.setdefault(member.name, member) != member:
            raise ConflictingMembers(member.name)
    return tuple(sorted(found.values(), key=lambda member: member.name))


def _require_text(field: str, text: str) -> None:
    if not text:
        raise InvalidMember(f"{field} of a member is empty; give it at least one character")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidMember(f"{field} {text!r} of a member is not valid Unicode text") from error
