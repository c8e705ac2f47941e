"""View: the members of all data centers that one node or client knows, with a hash.

Equal hashes mean equal rings. When hashes differ, one of the two views is older, but the hashes do
not show which one. The caller decides which members belong to a view.
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
"""Number of cached rings, shared by all views: a restarted member gives the same ring again."""


@dataclass(frozen=True, slots=True)
class View:
    """Set of all members at one moment, with one ring for each data center.

    Build it with `View.of`. Views of equal members are equal.
    """

    members: tuple[Member, ...]
    """Members of all data centers, sorted by name."""
    hash: int = field(compare=False)
    """Unsigned 64-bit hash of the members; equal on every host and independent of their order."""
    datacenters: tuple[str, ...] = field(compare=False, repr=False)
    """Sorted names of the data centers that have members."""
    _rings: dict[str, Ring] = field(default_factory=dict, repr=False, compare=False)
    """Rings built so far. Most clients need only the ring of their own data center."""
    _like: dict[str, Ring] = field(default_factory=dict, repr=False, compare=False)
    """Earlier rings by data center, which reduce the cost of building new rings."""

    @classmethod
    def of(cls, members: Iterable[Member], like: "View | None" = None) -> Self:
        """Create a view from members; their order does not matter, and duplicates are ignored.

        `like` is a view with similar members, usually the previous view. It reduces the cost of
        building the rings and does not affect the result. Raises `ConflictingMembers` when two
        members share a name but differ otherwise.
        """
        sorted_members = by_name(members)
        number, present = _identify(sorted_members)
        known = {} if like is None else {**like._like, **like._rings}
        known = {name: ring for name, ring in known.items() if name in present}
        return cls(sorted_members, number, present, _like=known)

    def ring(self, datacenter: str) -> Ring:
        """Return the ring of one data center; an empty ring when the data center has no members.

        Cost: that of `Ring.of` at the first call, one look-up at later calls.
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
    """Return the cache entry for the ring of the given members, which several views can share.

    The result does not depend on the similar ring that makes building it faster.
    """
    return []


@lru_cache(_RINGS_KEPT)
def _identify(sorted_members: tuple[Member, ...]) -> tuple[int, tuple[str, ...]]:
    """Return the hash of members and data centers that identifies a view."""
    return _hash_of(sorted_members), tuple(sorted({member.datacenter for member in sorted_members}))


def _hash_of(sorted_members: Iterable[Member]) -> int:
    digest = blake2b(digest_size=8)
    for member in sorted_members:
        for text in (member.name, member.datacenter, member.zone):
            encoded = text.encode()
            digest.update(pack(">I", len(encoded)) + encoded)
        digest.update(pack(">d", member.weight))
    return int.from_bytes(digest.digest(), "big")
