"""Merge of the metrics pages of several members into one page."""

from prometheus_client.parser import text_string_to_metric_families

from node.supervisor.host_members import HostMember
from node.supervisor.merged_metrics import merged

PAGE = """\
# HELP ringfence_decisions Checks decided.
# TYPE ringfence_decisions counter
ringfence_decisions_total{{result="allowed"}} {allowed}
# HELP ringfence_keys Counters kept.
# TYPE ringfence_keys gauge
ringfence_keys {keys}
# EOF
"""


def members() -> list[HostMember]:
    return [
        HostMember(0, "web-0", "127.0.0.1:7101", None, is_up=True),
        HostMember(1, "web-1", "127.0.0.1:7102", None, restarts=3),
    ]


def samples(page: bytes) -> dict[tuple[str, str], float]:
    return {
        (sample.name, sample.labels["member"]): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


def test_each_sample_has_the_label_of_its_member_and_each_name_has_one_type_line() -> None:
    pages = {"web-0": PAGE.format(allowed=7, keys=2), "web-1": PAGE.format(allowed=5, keys=1)}

    page, content_type = merged(pages, members(), "")

    found = samples(page)
    assert found["ringfence_decisions_total", "web-0"] == 7
    assert found["ringfence_decisions_total", "web-1"] == 5
    assert found["ringfence_keys", "web-1"] == 1
    assert page.count(b"# TYPE ringfence_decisions_total counter") == 1
    assert content_type.startswith("text/plain")


def test_supervisor_metrics_cover_members_that_do_not_answer() -> None:
    page, content_type = merged({}, members(), "application/openmetrics-text; version=1.0.0")

    assert b'ringfence_process_up{member="web-0"} 1.0' in page
    assert b'ringfence_process_up{member="web-1"} 0.0' in page
    assert b'ringfence_process_restarts_total{member="web-1"} 3.0' in page
    assert page.endswith(b"# EOF\n")
    assert content_type.startswith("application/openmetrics-text")
