"""Watch of shard ownership: samples which shards are not on their usual owner.

The usual owner and standby of a shard follow from the ring of all hosts of a data center. A shard
is disturbed while it is not held by its usual owner alone, while the host of its owner or standby
has no node, and while a node has another owner or standby for it.
"""

from functools import cache, reduce
from operator import or_

from msgspec import Struct

from hashring import SHARDS, Member, NodeId, Ring, View
from ringfence import runtime
from simulations.judging.disturbance import Disturbances
from simulations.judging.excuses import Holders
from simulations.world.hosts import Host, Hosts

__all__ = ["SettlingWatch"]

_INTERVAL_S = 0.1
_FEW = 20
"""Number of hosts up to which the interval is the shortest; it grows with the number of hosts."""


class _Seen(Struct, frozen=True):
    """Sample of one host: its held shards, its ring, and the disturbed shards that follow."""

    held: bytes
    ring: Ring
    disturbed: int


class SettlingWatch:
    """Sampler of the disturbed shards of all data centers."""

    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts
        interval = _INTERVAL_S * max(1.0, len(hosts.names()) / _FEW)
        self.disturbances, self.holders = Disturbances(interval), Holders(interval)
        self._usual: dict[str, Ring] = {}
        self._seen: dict[str, _Seen] = {}
        """Last sample of each host with a node."""
        self._in_datacenter: dict[str, list[Host]] = {}
        self._parts: dict[str, list[int]] = {}
        """Last sample of each data center, by host."""
        for host in hosts.by_name.values():
            self._in_datacenter.setdefault(host.datacenter, []).append(host)
        for datacenter, theirs in self._in_datacenter.items():
            members = [Member(NodeId(each.name), each.datacenter, each.zone) for each in theirs]
            self._usual[datacenter] = View.of(members).ring(datacenter)

    async def run(self) -> None:
        """Sample all data centers at intervals until cancelled."""
        while True:
            self.look()
            await runtime.sleep(self.disturbances.interval_s)

    def look(self) -> None:
        """Sample all data centers once."""
        for datacenter, ring in self._usual.items():
            parts = [self._disturbed_by(host, ring) for host in self._in_datacenter[datacenter]]
            if parts != self._parts.get(datacenter):
                self._parts[datacenter] = parts
                self.disturbances.add(datacenter, self._hosts.now, reduce(or_, parts))

    def _disturbed_by(self, host: Host, usual: Ring) -> int:
        """Return one byte per shard, not 0 for shards for which a host is not in its usual
        state."""
        name = NodeId(host.name)
        if host.node is None:
            self.holders.add(host.name, self._hosts.now, b"")
            return _owned(usual, name) | _covered(usual, name)
        held, ring = host.node.queries.held_map(), host.node.cluster.view.ring(host.datacenter)
        seen = self._seen.get(name)
        if seen is None or seen.held != held or seen.ring is not ring:
            self.holders.add(host.name, self._hosts.now, held)
            disturbed = int.from_bytes(held, "little") ^ _owned(usual, name)
            disturbed |= 0 if ring == usual else _changed(usual, ring)
            seen = self._seen[name] = _Seen(held, ring, disturbed)
        return seen.disturbed


@cache
def _owned(ring: Ring, name: NodeId) -> int:
    return int.from_bytes(bytes([owner == name for owner in ring.owner_by_shard]), "little")


@cache
def _covered(ring: Ring, name: NodeId) -> int:
    return int.from_bytes(bytes([each == name for each in ring.standby_by_shard]), "little")


@cache
def _changed(usual: Ring, ring: Ring) -> int:
    """Return one byte per shard, 1 where two rings have different owners or standbys."""
    if not ring.members:
        return int.from_bytes(bytes([1]) * SHARDS, "little")
    sides = [list(zip(each.owner_by_shard, each.standby_by_shard or [None] * SHARDS, strict=True))
             for each in (usual, ring)]  # fmt: skip
    return int.from_bytes(bytes([a != b for a, b in zip(*sides, strict=True)]), "little")
