"""View: the members of all data centers as one node or client sees them, with a hash.

Equal hashes mean equal rings. Different hashes mean that one side is behind, but not which one.
The caller decides which members belong to a view.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from struct import pack
from typing import Self

from hashring.member import Member, by_name
from hashring.ring import Ring

__all__ = ["View"]

_RINGS_KEPT = 32
"""Rings that views share: the same members come back after a flap, and in other views."""


@dataclass(frozen=True, slots=True)
class View:
    """The members of a cluster at one moment, and a ring for each data center.

    Build it with `View.of`. Views of equal members are equal.
    """

    members: tuple[Member, ...]
    """Of all data centers, sorted by name."""
    hash: int = field(compare=False)
    """Names the members in 64 bits, unsigned: the same on every host, whatever their order."""
    datacenters: tuple[str, ...] = field(compare=False, repr=False)
    """The data centers that have members, sorted."""
    _rings: dict[str, Ring] = field(default_factory=dict, repr=False, compare=False)
    """Rings asked for so far: most clients only ever need that of their own data center."""
    _like: dict[str, Ring] = field(default_factory=dict, repr=False, compare=False)
    """What rings not asked for yet are made from."""

    @classmethod
    def of(cls, members: Iterable[Member], like: "View | None" = None) -> Self:
        """Take the members in any order, repeated or not.

        `like` is a view of much the same members, as a rule the one before; rings are then made
        of its rings, which changes nothing but their cost.
        Raises `ConflictingMembers` when two members share a name but differ otherwise.
        """
        roster = by_name(members)
        number, present = _identify(roster)
        known = {} if like is None else {**like._like, **like._rings}
        known = {name: ring for name, ring in known.items() if name in present}
        return cls(roster, number, present, _like=known)

    def ring(self, datacenter: str) -> Ring:
        """Give the ring of one data center; an empty ring when it has no members.

        Cost: that of `Ring.of` for the first question, one look-up afterwards.
        """
        ring = self._rings.get(datacenter)
        if ring is None:
            members = tuple(each for each in self.members if each.datacenter == datacenter)
            shared = _ring_shared_by(members)
            if not shared:
                shared.append(Ring.of(members, self._like.get(datacenter)))
            ring = self._rings[datacenter] = shared[0]
            self._like.pop(datacenter, None)
        return ring


@lru_cache(_RINGS_KEPT)
def _ring_shared_by(members: tuple[Member, ...]) -> list[Ring]:
    """The place of the ring of these members, which is the same whatever it is made of."""
    return []


@lru_cache(_RINGS_KEPT)
def _identify(roster: tuple[Member, ...]) -> tuple[int, tuple[str, ...]]:
    """Return the hash of members and their data centers."""
    return _hash_of(roster), tuple(sorted({member.datacenter for member in roster}))


def _hash_of(roster: Iterable[Member]) -> int:
    digest = blake2b(digest_size=8)
    for member in roster:
        for text in (member.name, member.datacenter, member.zone):
            encoded = text.encode()
            digest.update(pack(">I", len(encoded)) + encoded)
        digest.update(pack(">d", member.weight))
    return int.from_bytes(digest.digest(), "big")
