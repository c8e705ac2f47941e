"""Law of replicas: after the calm, the standby of each counter has all units that its owner counts.

A crash may then happen at any time without a loss. Counts of aligned windows must be equal. Other
units expire by their ages. The ages at both nodes may differ by the time that a replica needs to
arrive, and by the errors of both clocks.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Self

from hashring import shard_of
from node.node import Node
from ringfence.limiter import NS_PER_SECOND, Algorithm, Engine, Limit, Snapshot
from ringfence.peering.engine_choice import engine_rules
from simulations.judging.allowed_loss import REPLICATION_LAG_S
from simulations.judging.excuses import Excuses
from simulations.judging.ledger import Ledger
from simulations.world.hosts import Hosts
from simulations.world.named_rules import NamedRules

__all__ = ["wrong_replicas"]

_MOST_REPORTED = 5
"""Most reported differences of one run."""
_ALIGNED = (Algorithm.FIXED_WINDOW, Algorithm.SLIDING_WINDOW)
"""Algorithms whose windows begin at instants of the clock."""
_MOST_KEYS = 200
"""Most keys of one rule that are compared."""


def wrong_replicas(
    hosts: Hosts,
    rules: NamedRules,
    ledger: Ledger,
    used_until: float,
    unsafe: Collection[str],
    excuses: Excuses,
) -> list[str]:
    """Describe the first replicas that differ from their owners' counters.

    Only keys are compared that clients did not use after `used_until`. `unsafe` are data centers
    with so many failures that counters and replicas may differ.
    """
    found: list[str] = []
    for datacenter in sorted({host.datacenter for host in hosts.running()} - {*unsafe}):
        keys = [
            match.key
            for name in rules.in_file
            for key in ledger.keys(name)[:_MOST_KEYS]
            if ledger.column(name, key).used_until <= used_until
            and (match := rules.match(name, key)) is not None
            and match.rule.limit is not None
            and match.rule.limit.algorithm is not Algorithm.CONCURRENCY
            and match.rule.home in ("", datacenter)
        ]
        found += _Comparison(hosts, datacenter, excuses).wrong(keys)
    return found[:_MOST_REPORTED]


@dataclass(frozen=True, slots=True)
class _Counters:
    """Counters that one node has, which can be read at any instant."""

    engine: Engine
    now: int
    """Present instant on the clock of the node."""
    limits: dict[bytes, Limit]
    """Limit by which each key was last counted."""
    states: dict[bytes, list[int]]
    """Numbers of each key's counter, also if the node refuses to restore them."""
    since: dict[bytes, int]
    """Instant at which the node got the counter of each key."""

    @classmethod
    def of(cls, node: Node, parts: Collection[tuple[int, Snapshot]]) -> Self:
        """Restore the counters that a node has got at different instants."""
        engine = Engine(max_keys=1 + sum(len(counts.keys) for _, counts in parts))
        engine.set_rules(engine_rules(node.rules.current.rules()))
        found = cls(engine, node.clock.now(), {}, {}, {})
        for at, counts in parts:
            engine.restore(counts, at)
            for key, state, number in zip(counts.keys, counts.states, counts.which, strict=True):
                found.limits[key], found.states[key] = counts.limits[number], state
                found.since[key] = at
        return found

    def used(self, key: bytes, later_ns: int = 0) -> int:
        """Return the units of a key that are in use, now or later."""
        return self.engine.used(key, self.now + later_ns)


class _Comparison:
    """Comparison of the counters of one data center with their replicas."""

    def __init__(self, hosts: Hosts, datacenter: str, excuses: Excuses) -> None:
        self._datacenter = datacenter
        self._excuses = excuses
        self._now = hosts.now
        self._nodes = {
            host.name: host.node
            for host in hosts.running()
            if host.datacenter == datacenter and host.node is not None
        }

    def wrong(self, keys: Iterable[bytes]) -> Iterator[str]:
        """Describe each replica that differs from the counter of its owner."""
        places = [(key, *found) for key in keys if (found := self._members(shard_of(key)))]
        counted = {
            owner: self._counted(owner, [key for key, name, _ in places if name == owner])
            for owner in sorted({owner for _, owner, _ in places})
        }
        replicas = {
            standby: self._replicated(standby, {shard_of(k) for k, _, n in places if n == standby})
            for standby in sorted({standby for _, _, standby in places})
        }
        for key, owner, standby in places:
            if wrong := self._difference(counted[owner], replicas[standby], key):
                yield f"{standby} has a replica of {key.hex()} with {wrong}, its owner is {owner}"

    def _members(self, shard: int) -> tuple[str, str] | None:
        """Return the owner and the standby of a shard, if both are running."""
        nodes = self._nodes
        owner = next((name for name, node in nodes.items() if _holds(node, shard)), "")
        if not owner or len(nodes[owner].cluster.ring.members) < 2:
            return None
        standby = nodes[owner].cluster.ring.standby(shard)
        return (owner, standby) if standby in nodes else None

    def _counted(self, owner: str, keys: Sequence[bytes]) -> _Counters:
        """Return counters of an owner."""
        node = self._nodes[owner]
        now = node.clock.now()
        return _Counters.of(node, [(now, node.shards.engine.snapshot(keys, now))])

    def _replicated(self, standby: str, shards: Collection[int]) -> _Counters:
        """Return the counters of shards that a standby would take over."""
        node = self._nodes[standby]
        replicas = node.shards.ownership.replicas
        return _Counters.of(node, [part for shard in shards for part in replicas.of(shard)])

    def _difference(self, counted: _Counters, replica: _Counters, key: bytes) -> str:
        """Return how a replica differs from the counter of its owner; empty if it does not."""
        used, replicated = counted.used(key), replica.used(key)
        mine, its = counted.limits.get(key), replica.limits.get(key)
        if mine and its and mine != its:
            return f"the limit {its}, not {mine}" if used else ""
        limit = mine or its
        if limit is None:
            return ""
        if limit.algorithm in _ALIGNED and not limit.first_hit:
            replicated = replica.engine.used(key, counted.now)
            # If the clock of the standby is ahead, windows have ended there already.
            ahead = max(0, replica.now - counted.now)
            is_wrong = not counted.used(key, ahead) <= replicated <= used
            is_wrong &= not self._is_refused(counted, replica, key, limit)
        else:
            error_ns, is_late = self._age_error(replica, key)
            is_wrong = counted.used(key, error_ns) > replicated
            is_wrong |= not is_late and replica.used(key, error_ns) > used
        return f"{replicated} units, not {used}" if is_wrong else ""

    def _is_refused(self, counted: _Counters, replica: _Counters, key: bytes, limit: Limit) -> bool:
        """Return whether a standby has the right windows, but refuses them.

        They have not begun at its clock, because a fault set this clock or the owner's wrong.
        """
        place = self._excuses.place(self._datacenter, shard_of(key))
        wrong_ns = self._excuses.clocks.steps_s(place) * NS_PER_SECOND
        is_behind = limit.period_ns // limit.slots < counted.now - replica.now <= wrong_ns
        return is_behind and replica.states.get(key) == counted.states.get(key)

    def _age_error(self, replica: _Counters, key: bytes) -> tuple[int, bool]:
        """Return by how many ns the age of a replica may be wrong, and whether it may be late.

        The units of a replica that a fault has delayed seem younger by an unknown time.
        """
        age_s = (replica.now - replica.since[key]) / NS_PER_SECOND if key in replica.since else inf
        begin = max(0.0, self._now - age_s)
        place = self._excuses.place(self._datacenter, shard_of(key))
        error_s, drift = self._excuses.clocks.in_span(place, begin, self._now)
        error_s += REPLICATION_LAG_S + drift * (self._now - begin)
        is_late = self._excuses.undisturbed_until([place], begin) <= self._now
        return round(error_s * NS_PER_SECOND), is_late


def _holds(node: Node, shard: int) -> bool:
    return bool(node.shards.ownership.held[shard])
