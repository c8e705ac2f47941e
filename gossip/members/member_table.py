"""Table of member records, with the digest and the sets of reachable members.

The table stores any record it is given; `member_states` decides which record is stored. Every
change costs O(1), independent of the size of the cluster.
"""

from collections.abc import Callable, Iterator
from hashlib import blake2b
from random import Random
from struct import pack

from gossip.members.record import Record, Status

__all__ = ["Pool", "MemberTable"]

_MASK = (1 << 64) - 1


class Pool:
    """Set of member names for random selection; all operations cost O(1)."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._places: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def add(self, name: str) -> None:
        """Add a member name if it is absent."""
        if name not in self._places:
            self._places[name] = len(self._names)
            self._names.append(name)

    def drop(self, name: str) -> None:
        """Remove a member name if it is present."""
        place = self._places.pop(name, None)
        if place is not None:
            last = self._names.pop()
            if last != name:
                self._names[place] = last
                self._places[last] = place

    def draw(
        self, count: int, random: Random, accepts: Callable[[str], bool] = lambda name: True
    ) -> list[str]:
        """Return up to `count` distinct random names; from a large pool it may return fewer."""
        if len(self._names) <= 4 * count:
            names = [name for name in self._names if accepts(name)]
            return random.sample(names, min(count, len(names)))
        drawn: dict[str, None] = {}
        for _ in range(4 * count):
            name = self._names[random.randrange(len(self._names))]
            if accepts(name):
                drawn[name] = None
            if len(drawn) == count:
                break
        return list(drawn)


class MemberTable:
    """Membership records of all members, including this one."""

    def __init__(self, me: Record) -> None:
        self.me = me
        """Record of this member."""
        self.records: dict[str, Record] = {}
        self.digest = 0
        """64-bit hash of the members that are not gone, and of which of them are routed.

        It is the sum of one hash per member, so the order of changes does not matter.
        """
        self.local_dc = Pool()
        """Other members of the local data center that are not gone."""
        self.remote_dc = Pool()
        """Members of other data centers that are not gone."""
        self.dead = Pool()
        """Dead members that are still remembered."""
        self._datacenters: dict[str, Pool] = {me.datacenter: self.local_dc}
        self.put(me)

    def get(self, name: str) -> Record | None:
        """Return the record of a member; None when the member is unknown."""
        return self.records.get(name)

    def put(self, record: Record) -> None:
        """Store a record in place of the earlier record with the same name."""
        self.forget(record.name, keep=True)
        self.records[record.name] = record
        self.digest = (self.digest + _hash_of(record)) & _MASK
        pool = self.pool_of(record)
        if record.name == self.me.name:
            self.me = record
        elif record.status is Status.DEAD:
            self.dead.add(record.name)
        elif not record.is_gone:
            pool.add(record.name)
            if not self.is_in_local_dc(record):
                self.remote_dc.add(record.name)

    def forget(self, name: str, *, keep: bool = False) -> None:
        """Remove a member from the digest and from all sets, and also its record unless `keep` is
        set.
        """
        before = self.records.get(name)
        if before is None:
            return
        self.digest = (self.digest - _hash_of(before)) & _MASK
        for pool in (self.dead, self.remote_dc, self.pool_of(before)):
            pool.drop(name)
        if not keep:
            del self.records[name]

    def pool_of(self, record: Record) -> Pool:
        """Return the members of the record's data center that are not dead and have not left,
        without this one."""
        return self._datacenters.setdefault(record.datacenter, Pool())

    def is_in_local_dc(self, record: Record) -> bool:
        """Whether a member belongs to the local data center."""
        return record.datacenter == self.me.datacenter

    def datacenters_left(self) -> set[str]:
        """Return the data centers whose members have all left voluntarily."""
        emptied = {name for name, pool in self._datacenters.items() if not pool}
        emptied.discard(self.me.datacenter)
        if not emptied:  # The common case: no search through all records.
            return emptied
        records = [each for each in self.records.values() if each.datacenter in emptied]
        here = {each.datacenter for each in records if each.status is not Status.LEFT}
        return {each.datacenter for each in records} - here

    @property
    def is_alone(self) -> bool:
        """Whether all other known members are dead or have left."""
        return not self.local_dc and not self.remote_dc


def _hash_of(record: Record) -> int:
    if record.is_gone:
        return 0  # Members forget gone members at different times.
    digest = record.digest
    if digest is None:
        digest = _hash_of_instance(record)
        object.__setattr__(record, "digest", digest)
    return digest


def _hash_of_instance(record: Record) -> int:
    texts = [text.encode() for text in (record.name, record.host, record.datacenter, record.zone)]
    numbers = (record.port, record.generation, record.weight, record.is_routed, record.is_placed)
    head = pack(">4H", *map(len, texts)) + pack(">HQd??", *numbers)
    return int.from_bytes(blake2b(head + b"".join(texts), digest_size=8).digest(), "big")
