"""Law of replicas: after the calm, the standby of each counter has all units that its owner counts.

A crash may then happen at any time without a loss. Only limits whose units stay counted until the
end are compared.
"""

from collections.abc import Collection, Iterator

from hashring import shard_of
from node.node import Node
from ringfence.limiter import NS_PER_SECOND, Algorithm, Engine
from ringfence.peering.engine_choice import engine_rules
from ringfence.rules import Match, Rule
from simulations.judging.ledger import Ledger
from simulations.world.hosts import Hosts
from simulations.world.named_rules import NamedRules

__all__ = ["wrong_replicas"]

_MOST_REPORTED = 5
"""Most reported differences of one run."""
_DAY_NS = 86_400 * NS_PER_SECOND
_KEEPING = (Algorithm.SLIDING_WINDOW_LOG, Algorithm.FIXED_WINDOW)
"""Algorithms that keep every unit for the whole period."""
_MOST_KEYS = 200
"""Most keys of one rule that are compared."""


def wrong_replicas(
    hosts: Hosts, rules: NamedRules, ledger: Ledger, unsafe: Collection[str]
) -> list[str]:
    """Describe the first replicas that differ from their owners' counters.

    `unsafe` are data centers with so many failures that counters and replicas may differ.
    """
    found: list[str] = []
    for datacenter in sorted({host.datacenter for host in hosts.running()} - {*unsafe}):
        places = [
            match
            for name in rules.in_file
            for key in ledger.keys(name)[:_MOST_KEYS]
            if (match := rules.match(name, key)) is not None
            and _is_kept(match.rule)
            and match.rule.home in ("", datacenter)
        ]
        found += _wrong_in(hosts, datacenter, places)
    return found[:_MOST_REPORTED]


def _is_kept(rule: Rule) -> bool:
    limit = rule.limit
    return (
        rule.scope != "global"
        and limit is not None
        and limit.algorithm in _KEEPING
        and limit.period_ns >= _DAY_NS
    )


def _wrong_in(hosts: Hosts, datacenter: str, places: Collection[Match]) -> Iterator[str]:
    """Compare the counters of one data center with their replicas."""
    nodes = {
        host.name: host.node
        for host in hosts.running()
        if host.datacenter == datacenter and host.node is not None
    }
    engines: dict[tuple[str, int], Engine] = {}
    for match in places:
        shard = shard_of(match.key)
        owner = next((name for name, node in nodes.items() if _holds(node, shard)), "")
        if not owner or len(nodes[owner].cluster.ring.members) < 2:
            continue
        standby = nodes[owner].cluster.ring.standby(shard)
        if standby not in nodes:
            continue
        replica = engines.get((standby, shard))
        if replica is None:
            replica = engines[standby, shard] = _replica(nodes[standby], shard)
        used = nodes[owner].queries.used(match.key)
        replicated = replica.used(match.key, nodes[standby].clock.now())
        if used != replicated:
            yield (
                f"{standby} has a replica with {replicated} units of {match.key.hex()}, "
                f"its owner {owner} counts {used}"
            )


def _holds(node: Node, shard: int) -> bool:
    return bool(node.shards.ownership.held[shard])


def _replica(node: Node, shard: int) -> Engine:
    """Return an engine with the counters that a standby would take over."""
    replicas = node.shards.ownership.replicas
    engine = Engine(max_keys=replicas.size_of(shard) + 1)
    engine.set_rules(engine_rules(node.rules.current.rules()))
    for arrived_at, counts in replicas.of(shard):
        engine.restore(counts, arrived_at)
    return engine
