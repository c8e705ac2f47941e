"""The records one member holds, and what is read from them often: who can be asked, the digest.

Takes any record it is given: which of two holds is decided by `record`, and asked by `membership`.
Every change costs O(1), whatever the size of the cluster.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from hashlib import blake2b
from random import Random
from struct import pack

from gossip.members.record import Record, Status

__all__ = ["Pool", "MemberTable"]

_MASK = (1 << 64) - 1
_HASHES_KEPT = 4096


class Pool:
    """Names to draw from; adding, dropping and drawing cost O(1) each."""

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
        """Add a name, unless it is there."""
        if name not in self._places:
            self._places[name] = len(self._names)
            self._names.append(name)

    def drop(self, name: str) -> None:
        """Drop a name, if it is there."""
        place = self._places.pop(name, None)
        if place is not None:
            last = self._names.pop()
            if last != name:
                self._names[place] = last
                self._places[last] = place

    def draw(
        self, count: int, random: Random, accepts: Callable[[str], bool] = lambda name: True
    ) -> list[str]:
        """Draw up to `count` different names; from a large pool, perhaps fewer than there are."""
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
    """Every member's record, one's own included."""

    def __init__(self, me: Record) -> None:
        self.me = me
        """What this member says of itself."""
        self.records: dict[str, Record] = {}
        self.digest = 0
        """Names the members that are not gone, and which are routed, in 64 bits.

        The sum of a hash of each: equal sets have equal digests, in whatever order they grew.
        """
        self.near = Pool()
        """Other members of the own data center that are not gone."""
        self.far = Pool()
        """Those of other data centers."""
        self.dead = Pool()
        """Held dead, and not forgotten yet."""
        self._datacenters: dict[str, Pool] = {me.datacenter: self.near}
        self.put(me)

    def get(self, name: str) -> Record | None:
        """The record of a member, if it is known."""
        return self.records.get(name)

    def put(self, record: Record) -> None:
        """Hold this record, and no longer the one of the same name."""
        self.forget(record.name, keep=True)
        self.records[record.name] = record
        self.digest = (self.digest + _hash_of(record)) & _MASK
        beside = self.beside(record)
        if record.name == self.me.name:
            self.me = record
        elif record.status is Status.DEAD:
            self.dead.add(record.name)
        elif not record.is_gone:
            beside.add(record.name)
            if not self.is_near(record):
                self.far.add(record.name)

    def forget(self, name: str, *, keep: bool = False) -> None:
        """Hold nothing of a member; with `keep`, its place among the records stays."""
        before = self.records.get(name)
        if before is None:
            return
        self.digest = (self.digest - _hash_of(before)) & _MASK
        for pool in (self.dead, self.far, self.beside(before)):
            pool.drop(name)
        if not keep:
            del self.records[name]

    def beside(self, record: Record) -> Pool:
        """The members of its data center that are not gone, save ourselves."""
        return self._datacenters.setdefault(record.datacenter, Pool())

    def is_near(self, record: Record) -> bool:
        """Whether it is of our own data center."""
        return record.datacenter == self.me.datacenter

    def datacenters_left(self) -> set[str]:
        """The data centers whose members have all left by their own will."""
        emptied = {name for name, pool in self._datacenters.items() if not pool}
        emptied.discard(self.me.datacenter)
        if not emptied:  # As nearly always: no need to look at every record.
            return emptied
        records = [each for each in self.records.values() if each.datacenter in emptied]
        here = {each.datacenter for each in records if each.status is not Status.LEFT}
        return {each.datacenter for each in records} - here

    @property
    def is_alone(self) -> bool:
        """Whether nobody else is known that is not gone."""
        return not self.near and not self.far


def _hash_of(record: Record) -> int:
    if record.is_gone:
        return 0  # Members forget the gone at different times.
    return _hash_of_running(record)


@lru_cache(_HASHES_KEPT)
def _hash_of_running(record: Record) -> int:
    texts = [text.encode() for text in (record.name, record.host, record.datacenter, record.zone)]
    numbers = (record.port, record.generation, record.weight, record.is_routed, record.is_placed)
    head = pack(">4H", *map(len, texts)) + pack(">HQd??", *numbers)
    return int.from_bytes(blake2b(head + b"".join(texts), digest_size=8).digest(), "big")
