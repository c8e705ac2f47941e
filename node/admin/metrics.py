"""Metrics of a node in the format of Prometheus.

Keys are never labels, and every set of label values is bounded. Rules beyond `MAX_LABELS` share
one label value. Causes, events and states are fixed in the code.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import TypeAlias

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from node.admin.views import is_ready
from node.metrics.detailed import NO_RULE, TIMED_EVERY, Metrics, Span
from node.node import Node
from ringfence.limiter import NS_PER_SECOND, bytes_per_key

__all__ = ["families", "render"]

_STATES = ("joining", "alive", "suspect", "forwarding", "leaving", "left", "dead")
_EVENTS = {
    "copies": (
        "copy",
        "Messages with changed counters, from owners to their standbys.",
        ("sent", "received", "lost", "late"),
    ),
    "cells": (
        "cell",
        "Counts sent to other data centers, or received from them.",
        ("sent", "received", "lost", "refused"),
    ),
    "digests": (
        "digest",
        "Comparisons of counts with other data centers.",
        ("sent", "differed"),
    ),
    "shards": (
        "shard",
        "Shards that moved, or were started from a replica without a transfer.",
        ("given", "pulled", "taken"),
    ),
    "keys": (
        "key",
        "Counters that moved with their shards, or were replicated to a standby.",
        ("given", "pulled", "copied", "not_copied"),
    ),
}
"""Events of moved counters, as in the names of the node's counters, such as `copies_sent`."""
_CHECKS = {
    "forwarded": "Checks forwarded to the owner.",
    "undecided": "Checks decided by the failure policy of the rule, because no node could.",
    "decided_as_standby": "Checks decided in place of an unreachable owner.",
    "borrowed": "Checks allowed by another data center's part of a limit.",
    "repeated": "Repeated requests, which were answered again and counted once.",
    "charges": "Costs charged afterwards, regardless of the remaining quota.",
    "overdrawn": "Charges after which the usage exceeded the limit.",
    "refunds": "Costs refunded.",
    "resets": "Counters reset on request.",
    "renewals": "Slots of concurrency limits renewed.",
    "slots_called": "Wake-ups of clients that wait for a slot.",
    "hits_merged": "Hits of other nodes that were added after network partitions.",
    "splits_healed": "Shards that two nodes counted at the same time and that were merged.",
    "states_refused": "Counters from peers for which this node has no rule.",
}
_BOUNDS_NS = range(10, 32)
"""Exponents of the bucket bounds, from about a microsecond to two seconds."""
_WAITED_NS = range(16, 37)
_FRAMES = range(1, 14)

_Figures: TypeAlias = Mapping[str, int]


def families(node: Node) -> list[Metric]:
    """Collect the metric families of a node, on its event loop.

    Cost: a few microseconds for each rule and metric.
    """
    counters = node.queries.stats(1).counters
    return [
        *_about(node, counters),
        *_decisions(node.queries.measure(), counters),
        *_rules(node, counters),
        *_moves(node, counters),
        *_membership(counters),
        _caused(
            "ringfence_refusals",
            "Refused connections and requests, by cause.",
            counters,
            "refused_",
        ),
        _caused(
            "ringfence_internal_errors",
            "Internal errors (exceptions in Ringfence's code) that were contained, by place.",
            counters,
            "internal_errors_",
            "place",
        ),
    ]


def render(found: Sequence[Metric], accept: str) -> tuple[bytes, str]:
    """Render metric families and the metrics of the process; return text and content type.

    This function does not access the node, so it may run in a thread.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Found(found))
    registry.register(ProcessCollector(registry=None))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class _Found(Collector):
    def __init__(self, found: Iterable[Metric]) -> None:
        self._found = found

    def collect(self) -> Iterable[Metric]:
        return self._found


def _about(node: Node, counters: _Figures) -> Iterator[Metric]:
    settings = node.settings
    about = InfoMetricFamily("ringfence_node", "Identity of this node.")
    labels = {"name": node.name, "datacenter": settings.datacenter, "zone": settings.zone}
    about.add_metric([], labels | {"version": node.version})
    yield about
    expiry = GaugeMetricFamily(
        "ringfence_certificate_expiry_timestamp_seconds",
        "When a certificate of this node expires, in seconds since 1970.",
        labels=["certificate"],
    )
    for certificate, instant in sorted(node.certificates_expire.items()):
        expiry.add_metric([certificate], instant)
    yield expiry
    states = Counter(row.state for row in node.queries.members(1).members)
    members = GaugeMetricFamily(
        "ringfence_members", "Members of the cluster as this node sees them.", labels=["state"]
    )
    for state in _STATES:
        members.add_metric([state], states[state])
    yield members
    yield _gauge("ringfence_ready", "Whether this node is ready to serve checks.", is_ready(node))
    yield _gauge(
        "ringfence_connections", "Connections of clients and peers.", counters, "connections"
    )
    yield _gauge(
        "ringfence_owned_shards",
        "Shards that this node owns according to the ring.",
        counters,
        "owned_shards",
    )
    yield _gauge(
        "ringfence_held_shards", "Shards whose counters this node has.", counters, "held_shards"
    )


def _decisions(measures: Metrics, counters: _Figures) -> Iterator[Metric]:
    decisions = CounterMetricFamily(
        "ringfence_decisions",
        "Checks decided by this node, by a failure policy where no node could, or by clients that "
        "reported here; a check that is forwarded counts where it is decided.",
        labels=["rule", "result", "source"],
    )
    for labels, count in sorted(measures.decisions().items()):
        decisions.add_metric(labels, count)
    yield decisions
    detailed = CounterMetricFamily(
        "ringfence_detailed_decisions",
        "Decisions by rules with detailed_metric or value_to_metric, by the name that Envoy's "
        "service would give the metric.",
        labels=["metric", "result"],
    )
    for names, count in sorted(measures.detailed_decisions().items()):
        detailed.add_metric(names, count)
    yield detailed
    seconds = HistogramMetricFamily(
        "ringfence_frame_seconds",
        "Time from a frame of checks to its answer: decided here at once, or forwarded, which "
        "includes waiting for a shard that is on its way. Of frames decided at once, one in "
        f"{TIMED_EVERY} is timed.",
        labels=["hop"],
    )
    for hop, span, bounds in (
        ("here", measures.decided_ns, _BOUNDS_NS),
        ("forwarded", measures.forwarded_ns, _WAITED_NS),
    ):
        seconds.add_metric([hop], _buckets(span, bounds, 1e-9), span.sum / NS_PER_SECOND)
    yield seconds
    frames = HistogramMetricFamily("ringfence_frame_checks", "Checks in frames decided here.")
    span = measures.frame_checks
    frames.add_metric([], _buckets(span, _FRAMES, 1), span.sum)
    yield frames
    for name, text in _CHECKS.items():
        yield CounterMetricFamily(f"ringfence_{name}", text, counters.get(name, 0))


def _rules(node: Node, counters: _Figures) -> Iterator[Metric]:
    keys = GaugeMetricFamily("ringfence_keys", "Counters kept.", labels=["rule"])
    sizes = GaugeMetricFamily(
        "ringfence_key_bytes",
        "Memory of the counters if every key is at its limit, estimated.",
        labels=["rule"],
    )
    by_rule, ruleless = node.shards.engine.sizes()
    counts: Counter[str] = Counter({NO_RULE: ruleless})
    memory: Counter[str] = Counter()
    label_of = node.queries.measure().label_of
    for rule in node.rules.current.rules():
        count = by_rule.get(rule.id, 0)
        if count and rule.limit is not None:
            counts[label_of(rule)] += count
            size = bytes_per_key(rule.limit, is_compiled=node.shards.engine.is_compiled)
            memory[label_of(rule)] += count * size
    for label, count in sorted(counts.items()):
        keys.add_metric([label], count)
    for label, size in sorted(memory.items()):
        sizes.add_metric([label], size)
    yield from (keys, sizes)
    yield _gauge(
        "ringfence_copied_keys",
        "Counters in the replicas of other owners.",
        counters,
        "copied_keys",
    )
    yield _gauge(
        "ringfence_keys_to_copy",
        "Changed counters that have not been sent to their standby yet.",
        counters,
        "keys_to_copy",
    )
    yield _gauge(
        "ringfence_copy_age_seconds",
        "Time since the oldest change that its standby has not acknowledged.",
        counters["copy_age_ms"] / 1000,
    )
    yield _gauge(
        "ringfence_evicted_keys",
        "Counters evicted because of max_keys or memory, of current rules.",
        counters,
        "evicted",
    )
    yield _gauge("ringfence_rules", "Rules in force.", len(node.rules.current.rules()))
    yield _gauge(
        "ringfence_rules_version",
        "Version of the rules; higher is newer.",
        counters,
        "rules_version",
    )
    yield _gauge(
        "ringfence_rules_hash",
        "Digest of the rules; equal on nodes with equal rules.",
        counters,
        "rules_hash",
    )
    yield _gauge(
        "ringfence_rules_refused",
        "Whether the rules on disk were rejected, so that older rules are in force.",
        counters,
        "rules_refused",
    )
    reloads = CounterMetricFamily(
        "ringfence_rule_reloads",
        "Rule loads that were applied or rejected since the start.",
        labels=["result"],
    )
    reloads.add_metric(["in_force"], counters.get("reloads", 0))
    reloads.add_metric(["refused"], counters.get("reloads_refused", 0))
    yield reloads


def _moves(node: Node, counters: _Figures) -> Iterator[Metric]:
    for kind, (name, text, events) in _EVENTS.items():
        family = CounterMetricFamily(f"ringfence_{name}_events", text, labels=["event"])
        for event in events:
            family.add_metric([event], counters.get(f"{kind}_{event}", 0))
        yield family
    yield _gauge(
        "ringfence_cells_waiting",
        "Counts waiting to be sent to other data centers.",
        counters,
        "cells_waiting",
    )
    rows, total = node.shards.cross_dc.staleness()
    staleness = HistogramMetricFamily(
        "ringfence_cell_staleness_seconds",
        "Age of counts when another data center acknowledged them.",
    )
    staleness.add_metric([], [(_le(bound), count) for bound, count in rows], total)
    yield staleness


def _membership(counters: _Figures) -> Iterator[Metric]:
    yield _caused(
        "ringfence_gossip_refusals",
        "Datagrams that changed nothing, by cause.",
        counters,
        "gossip_refused_",
    )
    events = CounterMetricFamily(
        "ringfence_gossip_events",
        "Membership events, such as probes, suspicions and refutations.",
        labels=["event"],
    )
    for name, count in sorted(counters.items()):
        event = name.removeprefix("gossip_")
        if event not in (name, "health") and not event.startswith("refused_"):
            events.add_metric([event], count)
    yield events
    yield _gauge(
        "ringfence_gossip_health",
        "Local health score: 0 is healthy, 8 means that this node itself is slow.",
        counters,
        "gossip_health",
    )


def _caused(name: str, text: str, counters: _Figures, prefix: str, label: str = "cause") -> Metric:
    family = CounterMetricFamily(name, text, labels=[label])
    for counter, count in sorted(counters.items()):
        if counter.startswith(prefix):
            family.add_metric([counter.removeprefix(prefix)], count)
    return family


def _gauge(name: str, text: str, value: float | _Figures, counter: str = "") -> Metric:
    return GaugeMetricFamily(
        name, text, value if isinstance(value, float | int) else value.get(counter, 0)
    )


def _buckets(span: Span, bounds: range, unit: float) -> list[tuple[str, int]]:
    """Convert a histogram to cumulative Prometheus buckets, one with the bound `2**n` for each n of
    `bounds`.

    A time in a bucket is below its bound. A whole number in a bucket is at most its bound.
    """
    less = 1 if unit == 1 else 0
    found = [(_le((2**n - less) * unit), sum(span.counts[: n + 1])) for n in bounds]
    return [*found, (_le(inf), sum(span.counts))]


def _le(bound: float) -> str:
    return "+Inf" if bound == inf else repr(float(bound))
