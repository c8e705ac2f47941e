"""Alert rules and dashboard: they use only metrics, labels and values that nodes export."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from trio.testing import MockClock

from node.supervisor.host_members import HostMember
from node.supervisor.merged_metrics import merged
from ringfence.gateway.process.metrics import Metrics
from ringfence.transport.tls.certificates import NODE_NAME
from tests.node.admin.asking import app_of, ask
from tests.node.cluster import owned, world

FOLDER = Path(__file__).parents[2] / "examples" / "monitoring"
ALERTS = yaml.safe_load((FOLDER / "alerts.yaml").read_text("utf-8"))
BOARD = json.loads((FOLDER / "grafana.json").read_text("utf-8"))
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
EXPRESSIONS = [rule["expr"] for rule in RULES]
EXPRESSIONS += [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]
VALUES = {
    "result": {"allowed", "denied"},
    "source": {"policy", "shed", "local", "standby"},
    "state": {"suspect", "dead"},
    "job": {"ringfence", "ringfence-gateway"},
    "domain": {"unknown"},
}
"""Values of labels that expressions may select. The docs contain all of them."""
GATEWAY_PAGE = (
    Metrics(Counter(["decided_denied_policy"]), unmatched=lambda: {"unknown": 1}).write(None)[0]
).decode()
HOST_PAGE = merged({}, [HostMember(0, "web-0", "10.0.0.1:7101", None)], "")[0].decode()
"""Metrics of a gateway, and of a host with several processes."""

Labels = Mapping[str, set[str]]


def selectors(expression: str) -> Iterator[tuple[str, str]]:
    """Yield each metric of an expression with the label selectors in its braces."""
    yield from re.findall(r"\b(ringfence_\w+|up)\b(?:\{(.*?)\})?", expression)


@pytest.fixture
async def samples(autojump_clock: MockClock) -> Labels:
    """Return the names of the samples of a node, each with the names of its labels."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    found["up"] = {"job", "instance"}
    async with world("a") as cluster:
        app = app_of(cluster.nodes["a"])
        cluster.nodes["a"].certificates_expire = {"node": 2e9}
        async with cluster.client("a") as limiter:
            for _ in range(9):
                await limiter.check("api", owned(cluster.rules, "client", "a"))
        await ask(app, "/nothing")
        cluster.nodes["a"].containment.by_place["session"] += 1
        text = (await ask(app, "/metrics")).body.decode()
    for page in (text, GATEWAY_PAGE, HOST_PAGE):
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                found[sample.name] |= sample.labels.keys()
    return found


async def test_every_metric_and_label_exists(samples: Labels) -> None:
    for expression in EXPRESSIONS:
        for name, braces in selectors(expression):
            assert name in samples, expression
            for label, values in re.findall(r'(\w+)=~?"(.*?)"', braces):
                assert label in samples[name], expression
                assert set(values.split("|")) <= VALUES[label], expression
        grouped = re.findall(r"\bby \((.*?)\)", expression)
        known = set().union(*[samples[name] for name, _ in selectors(expression)])
        assert {label for by in grouped for label in by.split(", ")} <= known, expression


async def test_alerts_see_the_first_count_of_a_series_that_is_new(
    autojump_clock: MockClock,
) -> None:
    """`increase` and `rate` are 0 for a series with one value, so an event that does not repeat
    needs `unless ... offset`. An alert with `for` waits for more events anyway."""
    async with world("a") as cluster:
        text = (await ask(app_of(cluster.nodes["a"]), "/metrics")).body.decode()
    families = [*text_string_to_metric_families(text), *text_string_to_metric_families(HOST_PAGE)]
    at_start = {sample.name for family in families for sample in family.samples}
    checked = 0
    for rule in RULES:
        expression = rule["expr"]
        for name, window in re.findall(r"(?:increase|rate)\((\w+).*?\[(\w+)\]", expression):
            if name not in at_start and "for" not in rule:
                assert f"({name} unless {name} offset {window}) > 0" in expression, rule["alert"]
                checked += 1

    assert checked


def test_alerts_and_dashboard_have_expressions_with_metrics() -> None:
    assert len(RULES) >= 10
    assert len(EXPRESSIONS) >= 20
    assert all(any(True for _ in selectors(expression)) for expression in EXPRESSIONS)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_every_alert_has_a_severity_and_a_summary(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert rule["annotations"]["summary"]


def test_every_panel_has_its_own_position_and_id() -> None:
    panels = BOARD["panels"]

    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({(p["gridPos"]["x"], p["gridPos"]["y"]) for p in panels}) == len(panels)


def test_the_scrape_job_names_the_alert_rules() -> None:
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text("utf-8"))

    assert [(FOLDER / name).is_file() for name in config["rule_files"]] == [True]
    assert {job["job_name"] for job in config["scrape_configs"]} == VALUES["job"]


def test_the_scrape_job_verifies_the_name_in_every_certificate() -> None:
    job, _ = yaml.safe_load((FOLDER / "prometheus.yml").read_text("utf-8"))["scrape_configs"]

    assert job["tls_config"]["server_name"] == NODE_NAME
