"""Watch of shard ownership: samples which shards are not on their usual owner.

The usual owner and standby of a shard follow from the ring of all hosts of a data center. A shard
is disturbed while its usual owner does not hold it alone. It is also disturbed while the host of
its owner or standby has no node, and while a node has another owner or standby for it.
"""

from collections.abc import Sequence
from functools import reduce
from operator import ne, or_

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
    """Sample of one host: the states of its shards, its ring, and the disturbed shards that
    follow."""

    states: bytes
    ring: Ring
    disturbed: int


class _Usual:
    """Usual owners and standbys of the shards of one data center."""

    def __init__(self, hosts: list[Host]) -> None:
        self.hosts = hosts
        datacenter = hosts[0].datacenter
        members = [Member(NodeId(each.name), each.datacenter, each.zone) for each in hosts]
        self._ring = View.of(members).ring(datacenter)
        self._covered = _by_member(self._ring.standby_by_shard)
        self._owned = _by_member(self._ring.owner_by_shard)
        self._latest = self._ring, 0
        """Latest other ring, and the shards that it changes."""

    def owned(self, name: NodeId) -> int:
        """Return one byte per shard, 1 where a member is the usual owner."""
        return self._owned.get(name, 0)

    def decided(self, name: NodeId) -> int:
        """Return one byte per shard, 1 where a member is the usual owner or standby."""
        return self.owned(name) | self._covered.get(name, 0)

    def changed(self, ring: Ring) -> int:
        """Return one byte per shard, 1 where another ring has a different owner or standby."""
        if self._latest[0] is not ring:
            self._latest = ring, 0 if ring == self._ring else _changed(self._ring, ring)
        return self._latest[1]


class SettlingWatch:
    """Sampler of the disturbed shards of all data centers."""

    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts
        interval = _INTERVAL_S * max(1.0, len(hosts.names()) / _FEW)
        self.disturbances, self.holders = Disturbances(interval), Holders(interval)
        self._seen: dict[str, _Seen] = {}
        """Last sample of each host with a node."""
        self._parts: dict[str, list[int]] = {}
        """Last sample of each data center, by host."""
        in_datacenter: dict[str, list[Host]] = {}
        for host in hosts.by_name.values():
            in_datacenter.setdefault(host.datacenter, []).append(host)
        self._usual = {datacenter: _Usual(theirs) for datacenter, theirs in in_datacenter.items()}

    async def run(self) -> None:
        """Sample all data centers at intervals until cancelled."""
        while True:
            self.look()
            await runtime.sleep(self.disturbances.interval_s)

    def look(self) -> None:
        """Sample all data centers once."""
        for datacenter, usual in self._usual.items():
            parts = [self._disturbed_by(host, usual) for host in usual.hosts]
            if parts != self._parts.get(datacenter):
                self._parts[datacenter] = parts
                self.disturbances.add(datacenter, self._hosts.now, reduce(or_, parts))

    def _disturbed_by(self, host: Host, usual: _Usual) -> int:
        """Return one byte per shard, not 0 for shards for which a host is not in its usual
        state."""
        name = NodeId(host.name)
        if host.node is None:
            self.holders.add(host.name, self._hosts.now, b"")
            return usual.decided(name)
        states, ring = host.node.queries.held_states(), host.node.cluster.view.ring(host.datacenter)
        seen = self._seen.get(name)
        if seen is None or seen.states != states or seen.ring is not ring:
            self.holders.add(host.name, self._hosts.now, states)
            held = int.from_bytes(host.node.queries.held_map(), "little")
            disturbed = (held ^ usual.owned(name)) | usual.changed(ring)
            seen = self._seen[name] = _Seen(states, ring, disturbed)
        return seen.disturbed


def _by_member(names: Sequence[NodeId]) -> dict[NodeId, int]:
    """Return one byte per shard for each member, 1 for the shards at which it is named."""
    found = {name: bytearray(SHARDS) for name in dict.fromkeys(names)}
    for shard, name in enumerate(names):
        found[name][shard] = 1
    return {name: int.from_bytes(shards, "little") for name, shards in found.items()}


def _changed(usual: Ring, ring: Ring) -> int:
    """Return one byte per shard, 1 where two rings have different owners or standbys."""
    if not ring.members:
        return int.from_bytes(bytes([1]) * SHARDS, "little")
    owners = bytes(map(ne, usual.owner_by_shard, ring.owner_by_shard))
    standbys = [each.standby_by_shard or [None] * SHARDS for each in (usual, ring)]
    return int.from_bytes(owners, "little") | int.from_bytes(bytes(map(ne, *standbys)), "little")
