"""Metrics of one gateway worker, in the format of Prometheus. Keys are never labels, because their
number is unbounded.

The HTTP and the gRPC port share one `Counter`. Its entries are paths (`grpc` for calls of Envoy),
`decided_` with result and source, `refused_` with the cause, and `bugs`.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from ringfence.client.decision import Decision
from ringfence.peering.routing.hedging import HedgingBudget
from ringfence.wire import Source

__all__ = ["LATE", "Metrics", "decided"]

_DECIDED, _REFUSED, _BUGS = "decided_", "refused_", "bugs"
LATE = "late"
"""Name under which late answers are counted."""
_NAMES = {
    (allowed, source): f"{_DECIDED}{'allowed' if allowed else 'denied'}_{source}"
    for allowed in (True, False)
    for source in Source
}


def decided(decision: Decision) -> str:
    """Return the name of the metric counter for the result and the source of a decision."""
    return _NAMES[decision.allowed, decision.source]


class Metrics(Collector):
    """Metrics of one gateway worker."""

    def __init__(
        self,
        counters: Counter[str],
        hedging: HedgingBudget | None = None,
        unmatched: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        self._counters = counters
        self._unmatched = unmatched
        self._hedging = hedging or HedgingBudget()
        self.is_ready = False
        self._registry = CollectorRegistry()
        self._registry.register(self)
        if Path("/proc/self").exists():
            ProcessCollector(registry=self._registry)

    def write(self, accept: str | None) -> tuple[bytes, str]:
        """Format all metrics in a format that the scraper accepts; return content type and text."""
        encode, content_type = choose_encoder(accept or "")
        return encode(self._registry), content_type

    def collect(self) -> Iterator[Metric]:
        """Convert the counters of this gateway worker to metric families of Prometheus."""
        answers = CounterMetricFamily(
            "ringfence_gateway_requests", "Requests that were let in.", labels=["path"]
        )
        decisions = CounterMetricFamily(
            "ringfence_gateway_decisions", "Decisions made.", labels=["result", "source"]
        )
        refusals = CounterMetricFamily(
            "ringfence_gateway_refusals", "Refused requests.", labels=["cause"]
        )
        bugs = CounterMetricFamily(
            "ringfence_gateway_bugs", "Internal errors; the log has the details."
        )
        bugs.add_metric([], self._counters[_BUGS])
        for name, count in sorted(self._counters.items()):
            if name.startswith(_DECIDED):
                result, _, source = name.removeprefix(_DECIDED).partition("_")
                decisions.add_metric([result, source], count)
            elif name.startswith(_REFUSED):
                refusals.add_metric([name.removeprefix(_REFUSED)], count)
            elif name not in (_BUGS, LATE):
                answers.add_metric([name], count)
        late = CounterMetricFamily(
            "ringfence_gateway_late",
            "Answers to Envoy more than a tenth after the deadline: this worker is overloaded.",
        )
        late.add_metric([], self._counters[LATE])
        asked = CounterMetricFamily("ringfence_gateway_asked_checks", "Checks sent to nodes.")
        asked.add_metric([], self._hedging.checks)
        hedged = CounterMetricFamily(
            "ringfence_gateway_hedged_checks",
            "Checks that were also sent to the standby because the owner was slow.",
        )
        hedged.add_metric([], self._hedging.taken)
        unmatched = CounterMetricFamily(
            "ringfence_gateway_unmatched_checks",
            "Checks that no rule matched and no limit applied to.",
            labels=["domain"],
        )
        for domain, count in self._unmatched().items():
            unmatched.add_metric([domain], count)
        ready = GaugeMetricFamily(
            "ringfence_gateway_ready", "Whether the worker has received the rules."
        )
        ready.add_metric([], float(self.is_ready))
        worker = GaugeMetricFamily(
            "ringfence_gateway_worker", "Worker that answers the scrape.", labels=["pid"]
        )
        worker.add_metric([str(os.getpid())], 1.0)
        yield from (
            answers,
            decisions,
            refusals,
            bugs,
            late,
            asked,
            hedged,
            unmatched,
            ready,
            worker,
        )
