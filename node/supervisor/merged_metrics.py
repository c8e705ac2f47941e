"""Merged metrics of several members, with the member's name as a label of each sample."""

from collections.abc import Mapping, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from node.supervisor.host_members import HostMember

__all__ = ["merged"]

_LABEL = "member"


def merged(
    pages: Mapping[str, str], members: Sequence[HostMember], accept: str
) -> tuple[bytes, str]:
    """Merge OpenMetrics pages by member name; return the page and its content type.

    The supervisor's own metrics come first.
    """
    found = {family.name: family for family in _supervised(members)}
    for name, page in pages.items():
        for family in text_string_to_metric_families(page):  # type: ignore[no-untyped-call]
            ours = found.setdefault(
                family.name, Metric(family.name, family.documentation, family.type, family.unit)
            )
            ours.samples += [
                sample._replace(labels={**sample.labels, _LABEL: name}) for sample in family.samples
            ]
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Found(list(found.values())))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


def _supervised(members: Sequence[HostMember]) -> list[Metric]:
    up = GaugeMetricFamily("ringfence_process_up", "Whether the member serves.", labels=[_LABEL])
    restarts = CounterMetricFamily(
        "ringfence_process_restarts",
        "How often the member's process has died and was started again.",
        labels=[_LABEL],
    )
    for member in members:
        up.add_metric([member.name], member.is_up)
        restarts.add_metric([member.name], member.restarts)
    return [up, restarts]


class _Found(Collector):
    def __init__(self, found: Sequence[Metric]) -> None:
        self._found = found

    def collect(self) -> Sequence[Metric]:
        return self._found
