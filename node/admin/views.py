"""JSON views of a node for the admin port.

Times are in seconds. A view is a snapshot of the node's current state. Nothing here waits.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias

from msgspec import to_builtins

from hashring import SHARDS, Ring, shard_of
from node.admin.http_messages import HttpProblem
from node.metrics.denied_keys import joined, values_of
from node.metrics.throttled_keys import PERIOD
from node.node import Node
from ringfence.limiter import NS_PER_SECOND, Code
from ringfence.rules import Descriptor, Match, Rule, RuleSet, format_limit
from ringfence.rules.descriptor_tree import place
from ringfence.rules.keys import decode_key
from ringfence.rules.report import Datacenters, describe
from ringfence.wire import Results, Source, Throttled

__all__ = [
    "datacenters_of",
    "is_ready",
    "key_view",
    "match_of",
    "members_view",
    "ring_of",
    "ring_view",
    "rules_view",
    "throttled_view",
]

Json: TypeAlias = dict[str, object]

_DEMAND = 2.0
"""Assumed demand relative to the limit, the same as in `ringfence rules check`."""
_RTT_STEP_NS = 10_000_000


def is_ready(node: Node) -> bool:
    """Return whether clients should send checks: not while the node joins or leaves."""
    return node.is_running and node.state in ("alive", "suspect", "forwarding")


def members_view(node: Node) -> Json:
    """Return all members of the cluster, as this node sees them."""
    return {
        "asked": node.name,
        "view": f"{node.queries.members(1).view:016x}",
        "members": node.queries.peers(1).plain,
    }


def ring_view(node: Node, shard: int | None) -> Json:
    """Return the share of the ring of each member by data center, and optionally the owner of one
    shard."""
    rings = node.cluster.rings()
    found: Json = {
        "asked": node.name,
        "shards": SHARDS,
        "datacenters": {name: _shares(ring) for name, ring in rings.items()},
        "here": {
            "held_shards": node.queries.stats(1).counters["held_shards"],
            "owned_shards": node.cluster.ring.owned_count(node.name),
        },
    }
    if shard is not None:
        found["shard"] = {
            "number": shard,
            "here": bool(node.shards.ownership.held[shard]),
            "datacenters": {
                name: {"owner": ring.owner(shard), "standby": ring.standby(shard)}
                for name, ring in rings.items()
                if ring.members
            },
        }
    return found


@lru_cache(maxsize=16)
def _shares(ring: Ring) -> list[Json]:
    """Count the shards by owner. The result is cached for each ring, because it visits every
    shard.
    """
    owned = Counter(ring.owner_by_shard)
    weights = sum(member.weight for member in ring.members)
    return [
        {
            "name": member.name,
            "zone": member.zone,
            "weight": member.weight,
            "owned_shards": owned[member.name],
            "share": round(owned[member.name] / SHARDS, 4),
            "fair_share": round(member.weight / weights, 4),
        }
        for member in ring.members
    ]


def datacenters_of(node: Node) -> Datacenters | None:
    """Return the data centers in which global rules apply; None if the cluster has only one."""
    rows = node.queries.members(1).members
    here = node.settings.datacenter
    names = {row.datacenter for row in rows if row.state != "left"}
    known = [node.membership.rtt_ns(row.name) for row in rows if row.datacenter != here]
    rtts = [rtt_ns for rtt_ns in known if rtt_ns is not None]
    if len(names) < 2 or not rtts:
        return None
    # Rounded to steps, so that results are not computed again each second.
    return Datacenters(len(names), -(-max(rtts) // _RTT_STEP_NS) * _RTT_STEP_NS, _DEMAND)


def rules_view(
    rules: RuleSet, where: Datacenters | None, keys: Mapping[int, int], *, is_compiled: bool
) -> Json:
    """Return the loaded rules, each with its identity, memory cost and bounds on admitted units.

    `keys` has the number of keys that this node counts, by rule. The memory is that of the compiled
    engine, or else of the reference engine. Cost: about 20 us per rule.
    """
    rows: list[Json] = []
    domain = ""
    for row in describe(rules, where=where, is_compiled=is_compiled):
        entry: Json = to_builtins(row)
        if row.depth == 0:
            domain = row.label
        entry["domain"] = domain
        entry["keys"] = keys.get(int(row.identity, 16), 0) if row.identity else None
        rows.append(entry)
    return {
        "version": rules.version,
        "count": len(rules.rules()),
        "datacenters": None if where is None else to_builtins(where),
        "rules": rows,
    }


def match_of(rules: RuleSet, domain: str, descriptor: Descriptor) -> Match:
    """Return the counter that a descriptor matches. Raises `HttpProblem` if it matches none."""
    if not rules.knows_domain(domain):
        known = ", ".join(rules.domains[:20]) or "none: this node has no rules"
        raise HttpProblem(404, f"no rules for domain {domain[:100]!r}", f"known are {known}")
    if not descriptor.entries:
        raise HttpProblem(
            400,
            "no descriptor",
            "write its entries as the query, in order: /v1/keys/api?client=203.0.113.7",
        )
    [match] = rules.match(domain, [descriptor])
    if match is None:
        raise HttpProblem(
            404,
            f"no rule of domain {domain[:100]!r} matches this descriptor",
            "the entries must have the keys of a rule, in the order of the file; see /v1/rules",
        )
    return match


def ring_of(node: Node, rule: Rule) -> tuple[str, Ring]:
    """Return the data center that decides the keys of a rule, and its hash ring."""
    here = node.settings.datacenter
    name = rule.home if rule.scope == "home" else here
    return name, node.cluster.rings().get(name, Ring.of(()))


def key_view(node: Node, match: Match, results: Results | None) -> Json:
    """Return the state and the location of one counter. `results` is the result of a peek: a check
    that spends no units."""
    rule = match.rule
    shard = shard_of(match.key)
    datacenter, ring = ring_of(node, rule)
    found: Json = {
        "asked": node.name,
        "rule": place(rule.domain, rule.path),
        "identity": f"{rule.id:016x}",
        "limit": "unlimited" if rule.limit is None else format_limit(rule.limit),
        "counter": values_of(rule, match.key),
        "key": match.key.hex(),
        "shard": shard,
        "datacenter": datacenter,
        "owner": ring.owner(shard) if ring.members else None,
        "standby": ring.standby(shard) if ring.members else None,
        "here": bool(node.shards.ownership.held[shard]) and datacenter == node.settings.datacenter,
    }
    if results is not None:
        outcome = results.outcomes.row(0)
        is_known = outcome.code is not Code.UNKNOWN_RULE
        found["state"] = {
            "decided_by": str(Source(results.sources[0])),
            "known": is_known,
            "limit": outcome.limit,
            "remaining": outcome.remaining,
            "retry_after": outcome.retry_after_ns / NS_PER_SECOND,
            "reset_after": outcome.reset_after_ns / NS_PER_SECOND,
        }
    return found


def throttled_view(
    node: Node, lists: Mapping[str, Throttled], missing: Sequence[str], count: int
) -> Json:
    """Return the keys that were denied most in the last minutes, merged from the lists of the
    members that answered."""
    found = joined(lists)
    return {
        "asked": node.name,
        "nodes": {name: each.denied for name, each in sorted(lists.items())},
        "counting_s": {name: each.counting_s for name, each in sorted(lists.items())},
        "missing": list(missing),
        "denied": found.denied,
        "seconds": [PERIOD, 2 * PERIOD],
        "keys": [
            _named(node, each.key)
            | {"denied": each.denied, "error": each.error, "nodes": each.nodes}
            for each in found.keys[:count]
        ],
    }


def _named(node: Node, key: bytes) -> Json:
    identity, _ = decode_key(key)
    rule, is_in_force = node.rules.rule_of_key(key)
    return {
        "rule": None if rule is None else place(rule.domain, rule.path),
        "removed": rule is not None and not is_in_force,
        "owner": _owner_of(node, rule, key),
        "identity": f"{identity:016x}",
        "shadow": rule is not None and rule.shadow,
        "quota": rule is not None and rule.quota,
        "counter": values_of(rule, key),
        "key": key.hex(),
    }


def _owner_of(node: Node, rule: Rule | None, key: bytes) -> str | None:
    """Return the node that decides a key; None if there is none."""
    ring = (
        node.cluster.rings().get(node.settings.datacenter)
        if rule is None
        else ring_of(node, rule)[1]
    )
    return ring.owner(shard_of(key)) if ring is not None and ring.members else None
