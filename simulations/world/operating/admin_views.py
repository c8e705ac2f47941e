"""Law of the views of the admin ports: after the calm, they must show the true cluster.

The truth comes from the hosts of the run and from the shards that each node holds.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property
from math import inf
from typing import Any

from hashring import SHARDS, shard_of
from simulations.judging.ledger import Ledger
from simulations.scenarios.latency import delay_s
from simulations.scenarios.scenario import Scenario
from simulations.world.hosts import Host, Hosts
from simulations.world.named_rules import DOMAIN, NamedRules
from simulations.world.operating.operator import Operator, Samples

__all__ = ["wrong_views"]

_MOST_REPORTED = 5
"""Most reported differences of one run."""
_SLOW_MS = 30.0
"""Most by which a smoothed round trip of a probe may exceed that of an idle path, besides its
doubling."""
_WITHOUT_DELAY = ("rules", "limits")
"""Faults after which the round trips of probes are as short as without faults."""
_GAUGES = ("connections", "owned_shards", "held_shards", "copied_keys", "keys_to_copy")
"""Counters of nodes that are metrics of the same name."""
_TOTALS = (
    *("forwarded", "undecided", "decided_as_standby", "repeated", "charges", "overdrawn"),
    *("refunds", "hits_merged", "splits_healed"),
)
"""Counters of nodes that are metrics of the same name with `_total`."""
_REFUSED = (
    ("GET", "/v1/nothing", "", 404),
    ("POST", "/v1/members", "", 405),
    ("GET", "/v1/ring", f"shard={SHARDS}", 400),
    ("GET", "/v1/keys/nothing", "a=b", 404),
    ("GET", f"/v1/keys/{DOMAIN}", "", 400),
)
"""Requests that every node must refuse, with the status."""


async def wrong_views(
    operator: Operator, hosts: Hosts, rules: NamedRules, ledger: Ledger, scenario: Scenario
) -> list[str]:
    """Describe the first differences between the views of the admin ports and the cluster."""
    truth = _Truth(hosts, scenario)
    found: list[str] = []
    for name in operator.names:
        host = hosts.by_name[name]
        found += truth.wrong_members(host, await operator.read(name, "/v1/members"))
        found += _wrong_metrics(host, await operator.read_metrics(name), len(operator.names))
    for viewer in dict.fromkeys((operator.names[0], operator.names[-1])):
        host = hosts.by_name[viewer]
        found += truth.wrong_summary(host, await operator.read_from_all(viewer, "/v1/cluster"))
        for rule in rules.in_file:
            for key in ledger.keys(rule)[:1]:
                found += await _wrong_key(operator, truth, host, rules, rule, key)
        found += await _wrong_statuses(operator, viewer)
    return found[:_MOST_REPORTED]


class _Truth:
    """State of the cluster that the views must show."""

    def __init__(self, hosts: Hosts, scenario: Scenario) -> None:
        self._hosts = hosts
        self._latency = scenario.network.latency
        self._is_slowed = any(each.verb not in _WITHOUT_DELAY for each in scenario.faults)

    @cached_property
    def _held(self) -> dict[str, bytes]:
        """Shards that each node holds: one byte per shard."""
        return {
            host.name: host.node.queries.held_map()
            for host in self._hosts.running()
            if host.node is not None
        }

    def holders(self, datacenter: str, shard: int) -> list[str]:
        """Return the nodes of a data center that hold a shard."""
        names = self._hosts.in_datacenter(datacenter)
        return [name for name in names if name in self._held and self._held[name][shard]]

    def wrong_members(self, viewer: Host, view: Mapping[str, Any]) -> Iterator[str]:
        """Compare the list of members with the hosts."""
        rows = {row["name"]: row for row in view.get("members", ())}
        states = self._hosts.states(viewer)
        for host in self._hosts.running():
            row = rows.get(host.name)
            if row is None:
                yield f"{viewer.name} does not show {host.name}"
                continue
            expected = {
                "host": host.name,
                "port": host.port,
                "datacenter": host.datacenter,
                "zone": host.zone,
                "weight": 1,
                "state": states[host.name],
                "owned_shards": self._held[host.name].count(1),
            }
            for name, value in expected.items():
                if row[name] != value:
                    yield f"{viewer.name} shows {name} of {host.name} as {row[name]}, not {value}"
            if host is not viewer and not self._is_round_trip(viewer, host, row["rtt_ms"]):
                yield f"{viewer.name} shows a round trip of {row['rtt_ms']} ms to {host.name}"

    def _is_round_trip(self, one: Host, other: Host, shown_ms: float | None) -> bool:
        if shown_ms is None:
            return False
        least_ms = 2000 * delay_s(self._latency, one.place, other.place)
        most_ms = inf if self._is_slowed else 2 * least_ms + _SLOW_MS
        return 0.99 * least_ms <= shown_ms <= most_ms

    def wrong_summary(self, viewer: Host, view: Mapping[str, Any]) -> Iterator[str]:
        """Compare the figures that one node has requested from all members with the members."""
        if view.get("missing") != []:
            yield f"{viewer.name} misses figures of {view.get('missing')}"
            return
        for host in self._hosts.running():
            assert host.node is not None
            own = host.node.queries.stats(1).counters
            shown = view["figures"].get(host.name, {})
            for name in ("keys", "held_shards", "rules_hash", "checks"):
                if shown.get(name) != own[name]:
                    yield (
                        f"{viewer.name} shows {name} of {host.name} as {shown.get(name)}, "
                        f"not {own[name]}"
                    )


def _wrong_metrics(host: Host, samples: Samples, members: int) -> Iterator[str]:
    """Compare the metrics of a node with its counters."""
    assert host.node is not None
    own = host.node.queries.stats(1).counters
    states = {labels[0]: value for (name, *labels), value in samples.items()
              if name == "ringfence_members"}  # fmt: skip
    expected = {(f"ringfence_{name}",): own[name] for name in _GAUGES}
    expected |= {(f"ringfence_{name}_total",): own[name] for name in _TOTALS}
    expected |= {("ringfence_ready",): 1}
    for place, value in expected.items():
        if samples.get(place) != value:
            yield f"{host.name} publishes {place[0]} as {samples.get(place)}, not {value}"
    if sum(states.get(name, 0) for name in ("alive", "suspect", "forwarding")) != members:
        yield f"{host.name} publishes the members {states}, got {members} running ones"
    keys = sum(value for (name, *_), value in samples.items() if name == "ringfence_keys")
    if keys != own["keys"]:
        yield f"{host.name} publishes {keys} keys, but counts {own['keys']}"


async def _wrong_key(
    operator: Operator, truth: _Truth, host: Host, rules: NamedRules, rule: str, key: str
) -> list[str]:
    """Compare the view of one key with the place of its counter."""
    match = rules.match(rule, key)
    if match is None:
        return []
    shard = shard_of(match.key)
    view = await operator.read(host.name, f"/v1/keys/{DOMAIN}", f"{rule}={key}")
    where = match.rule.home if match.rule.scope == "home" else host.datacenter
    holders = truth.holders(where, shard)
    expected = {
        "rule": rules.label(rule),
        "counter": [[rule, key]],
        "key": match.key.hex(),
        "shard": shard,
        "datacenter": where,
        "owner": holders[0] if holders else None,
        "here": host.name in holders,
    }
    wrong = [name for name, value in expected.items() if view.get(name) != value]
    return [
        f"{host.name} shows {name} of {rule}={key} as {view.get(name)!r}, not {expected[name]!r}"
        for name in wrong
    ]


async def _wrong_statuses(operator: Operator, name: str) -> list[str]:
    """Check the status of requests that a node must answer or refuse."""
    requests = [*_REFUSED, ("GET", "/healthz", "", 200), ("GET", "/v1/rules", "", 200)]
    found = []
    for method, path, query, status in requests:
        response = await operator.request(name, path, query, method)
        if response.status != status:
            found.append(f"{name} answers {path} with status {response.status}, not {status}")
    return found
