"""Second standbys of shards while a member joins or leaves.

The ring of members that should have counters contains joining members. Checks are still sent by the
ring without them. So a shard can have two standbys: the next one, and the present one, which
decides if the owner fails. Both need replicas until the other member has joined.
"""

from collections.abc import Iterable, Sequence
from itertools import compress, islice

from msgspec import Struct, field

from hashring import SHARDS, NodeId, Ring, group_by, shard_of
from node.shards.ownership.ownership import ShardOwnership

__all__ = ["SecondStandbys", "standbys_of"]

_ALL = range(SHARDS)
_NO_STANDBYS = (None,) * SHARDS


class _Owed(Struct):
    """Keys that wait for one standby."""

    since: int
    """Instant of their oldest change."""
    keys: dict[bytes, None] = field(default_factory=dict)


class SecondStandbys:
    """Present standbys that differ from the next ones, and the keys that only one of both lacks."""

    def __init__(self, me: NodeId, ownership: ShardOwnership, max_keys: int) -> None:
        """At most `max_keys` keys wait for each standby; the oldest ones are dropped."""
        self._me = me
        self._ownership = ownership
        self._max_keys = max_keys
        self._ring = Ring.of(())
        """Ring by which checks are sent to owners and standbys."""
        self._marked = b""
        """By shard: 1 if it has a second standby; empty without such shards."""
        self._changes: list[tuple[Ring, Ring]] = []
        self.owed: dict[NodeId, _Owed] = {}
        """Keys that wait only for one standby, because the other one has got them."""

    def __bool__(self) -> bool:
        return bool(self._marked)

    @property
    def backlog(self) -> int:
        """Return the number of keys that wait only for one standby; a key that waits for both
        counts twice."""
        return sum([len(owed.keys) for owed in self.owed.values()])

    def on_ring_change(self, ring: Ring, check_ring: Ring) -> list[bytes]:
        """Follow a change of the ring; return the keys that have waited, so that they
        are sent to the standbys of the new ring.

        Checks are sent by `check_ring`, and `ring` has the members that should have counters.
        """
        self._marked = b""
        if check_ring.members != ring.members:
            others = {member.name for member in ring.members if member.name != self._me}
            pairs = zip(standbys_of(ring), standbys_of(check_ring), strict=True)
            marked = bytes([second != first and second in others for first, second in pairs])
            self._marked = marked if any(marked) else b""
            self._changes.append((self._ring, check_ring))
        self._ring = check_ring
        waiting = [key for owed in self.owed.values() for key in owed.keys]
        self.owed.clear()
        return waiting

    def shards_with_new_one(self, restarted: Iterable[NodeId]) -> set[int]:
        """Return the held shards whose second standby is new since the last call, or was
        restarted."""
        changes, self._changes = self._changes, []
        if not self._marked:
            return set()
        held = [*compress(_ALL, self._ownership.held)]
        new = set[int]()
        for before, after in [(standbys_of(old), standbys_of(ring)) for old, ring in changes]:
            new.update([shard for shard in held if before[shard] != after[shard]])
        now, restarted = standbys_of(self._ring), {*restarted}
        new.update([shard for shard in held if now[shard] in restarted])
        return {shard for shard in new if self._marked[shard]}

    def groups(self, keys: Sequence[bytes]) -> list[tuple[NodeId, list[bytes]]]:
        """Return keys by their second standby, without those that it may have newer counters of."""
        if not self._marked:
            return []
        groups = group_by(keys, self._ring.standby_by_shard, self._marked)
        return [
            (standby, safe)
            for standby, of_standby in sorted(groups.items())
            if (safe := [key for key in of_standby if self.is_safe(standby, key)])
        ]

    def of_two(self, standby: NodeId, keys: Iterable[bytes], ring: Ring) -> dict[bytes, None]:
        """Return those of `keys` that have two standbys, of which `standby` is one; `ring` has the
        members that should have counters."""
        if not self._marked:
            return {}
        return {
            key: None
            for key in keys
            if self._marked[shard := shard_of(key)]
            and shard not in self._ownership.covers
            and standby in (ring.standby(shard), self._ring.standby(shard))
        }

    def is_safe(self, standby: NodeId, key: bytes) -> bool:
        """Return whether this node holds a key, and a standby has no newer counter of it."""
        ownership, shard = self._ownership, shard_of(key)
        return (
            bool(ownership.held[shard])
            and shard not in ownership.covers
            and not ownership.unasked.may_have_replica(standby, shard)
        )

    def owe(self, standby: NodeId, keys: Iterable[bytes], since: int) -> int:
        """Add keys that wait only for this standby; return the number of dropped keys.

        `since` is the instant of their oldest change.
        """
        owed = self.owed.setdefault(standby, _Owed(since))
        owed.since = min(owed.since, since)
        owed.keys.update(dict.fromkeys(keys))
        excess = [*islice(owed.keys, max(0, len(owed.keys) - self._max_keys))]
        for key in excess:
            del owed.keys[key]
        return len(excess)

    def take(self, standby: NodeId, most: int) -> list[bytes]:
        """Remove and return up to `most` keys that wait only for this standby."""
        owed = self.owed[standby].keys
        keys = [*islice(owed, most)]
        for key in keys:
            del owed[key]
        if not owed:
            del self.owed[standby]
        return keys


def standbys_of(ring: Ring) -> Sequence[NodeId | None]:
    """Return the standby of each shard; None for all shards of a ring with one member."""
    return ring.standby_by_shard or _NO_STANDBYS
