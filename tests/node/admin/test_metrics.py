"""Text of `/metrics`, parsed with Prometheus' own parsers."""

from collections.abc import Iterable, Mapping
from math import inf

import pytest
import trio
from msgspec.structs import replace
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_open_metrics
from prometheus_client.parser import text_string_to_metric_families as read_text
from trio.testing import MockClock

from node.admin.metrics import render
from node.metrics.detailed import MAX_LABELS, NO_RULE, OTHER_RULES
from node.node import Node
from ringfence.rules.loading.yaml_files import load_text
from tests.node.admin.asking import LOCAL, app_of, ask
from tests.node.cluster import World, owned, world

Samples = Mapping[tuple[str, frozenset[tuple[str, str]]], float]


def samples_of(families: Iterable[Metric]) -> Samples:
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for family in families:
        assert family.documentation
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in found, "a sample occurs twice"
            found[key] = sample.value
    return found


async def scrape(node: Node) -> Samples:
    answer = await ask(app_of(node), "/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    return samples_of(read_text(answer.body.decode()))


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, frozenset(labels.items())]


async def spend(made: World, times: int, name: str = "a") -> None:
    async with made.client(denials=0) as limiter:  # The node decides every denial.
        for _ in range(times):
            await limiter.check("api", owned(made.rules, "client", name))


async def test_both_text_formats_have_the_same_samples(autojump_clock: MockClock) -> None:
    async with world("a") as made:
        await spend(made, 7)
        app = app_of(made.nodes["a"])
        plain = await ask(app, "/metrics")
        accept = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"
        open_metrics = await ask(app, "/metrics", headers={**LOCAL, "accept": accept})

    assert open_metrics.headers["content-type"].startswith("application/openmetrics-text")
    sample_keys = [
        {key for key in samples_of(families) if key[0].startswith("ringfence")}
        for families in (
            read_text(plain.body.decode()),
            read_open_metrics(open_metrics.body.decode()),
        )
    ]
    assert sample_keys[0] == sample_keys[1]
    assert len(sample_keys[0]) > 100


async def test_decision_metrics_have_rule_result_and_source_labels(
    autojump_clock: MockClock,
) -> None:
    async with world("a") as made:
        app_of(made.nodes["a"])  # From now on the node counts decisions per rule.
        await spend(made, 7)
        found = await scrape(made.nodes["a"])

    rule = {"rule": "api > client", "source": "owner"}
    assert value(found, "ringfence_decisions_total", result="allowed", **rule) == 5
    assert value(found, "ringfence_decisions_total", result="denied", **rule) == 2
    assert value(found, "ringfence_frame_seconds_count", hop="here") == 1
    assert value(found, "ringfence_frame_seconds_sum", hop="here") > 0
    assert value(found, "ringfence_frame_checks_bucket", le="1.0") == 7
    assert value(found, "ringfence_keys", rule="api > client") == 1
    key_bytes = value(found, "ringfence_key_bytes", rule="api > client")
    assert key_bytes == (52 if made.nodes["a"].shards.engine.is_compiled else 276)
    assert value(found, "ringfence_ready") == 1
    assert value(found, "ringfence_held_shards") == 16384


async def test_events_that_have_not_occurred_count_zero(autojump_clock: MockClock) -> None:
    async with world("a") as made:
        found = await scrape(made.nodes["a"])

    for name in ("forwarded", "undecided", "refunds", "repeated", "hits_merged"):
        assert value(found, f"ringfence_{name}_total") == 0
    assert value(found, "ringfence_rule_reloads_total", result="in_force") == 0
    assert value(found, "ringfence_rule_reloads_total", result="refused") == 0
    events = [each for (name, _), each in found.items() if name == "ringfence_shard_events_total"]
    assert events
    assert set(events) == {0}
    assert value(found, "ringfence_keys", rule=NO_RULE) == 0
    assert value(found, "ringfence_cells_waiting") == 0


async def test_times_are_in_seconds(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world("a") as made:
        node = made.nodes["a"]
        stats = node.queries.stats(1)
        changed_stats = replace(stats, counters={**stats.counters, "copy_age_ms": 1500})
        monkeypatch.setattr(node.queries, "stats", lambda seq: changed_stats)
        found = await scrape(node)

    assert value(found, "ringfence_copy_age_seconds") == 1.5


async def test_histograms_have_powers_of_two_as_bounds(autojump_clock: MockClock) -> None:
    async with world("a") as made:
        await spend(made, 1)
        found = await scrape(made.nodes["a"])

    def bounds(name: str, **labels: str) -> list[float]:
        return sorted(
            float(dict(reported)["le"])
            for sample, reported in found
            if sample == f"{name}_bucket" and labels.items() <= dict(reported).items()
        )

    here = bounds("ringfence_frame_seconds", hop="here")
    assert here == [*(2**n * 1e-9 for n in range(10, 32)), inf]
    forwarded = bounds("ringfence_frame_seconds", hop="forwarded")
    assert forwarded == [*(2**n * 1e-9 for n in range(16, 37)), inf]
    assert bounds("ringfence_frame_checks") == [*(2.0**n - 1 for n in range(1, 14)), inf]


async def test_a_forwarded_check_counts_at_the_deciding_node(autojump_clock: MockClock) -> None:
    async with world("a", "b", joins=True) as made:
        for node in made.nodes.values():
            app_of(node)
        keys = [{"tenant": f"t{number}"} for number in range(30)]
        async with made.client("a", only=True) as limiter:
            for descriptor in keys:
                await limiter.check("api", descriptor)
        found = [await scrape(node) for node in made.nodes.values()]

    labels = {"rule": "api > tenant", "result": "allowed", "source": "owner"}
    decided = [value(each, "ringfence_decisions_total", **labels) for each in found]
    forwarded = value(found[0], "ringfence_forwarded_total")
    assert sum(decided) == 30
    assert forwarded == decided[1] > 0
    assert value(found[0], "ringfence_frame_seconds_count", hop="forwarded") == forwarded
    assert value(found[0], "ringfence_members", state="alive") == 2
    assert value(found[0], "ringfence_gossip_events_total", event="probes") > 0


async def test_no_key_is_ever_a_label(autojump_clock: MockClock) -> None:
    async with world("a") as made:
        app_of(made.nodes["a"])
        async with made.client("a") as limiter:
            for _ in range(9):
                await limiter.check("api", {"client": "a-secret-name"})
                await limiter.check_limit("5/minute", "a-secret-name")
        answer = await ask(app_of(made.nodes["a"]), "/metrics")

    assert b"api > client" in answer.body
    assert b"a-secret-name" not in answer.body


async def test_the_number_of_rule_labels_is_bounded(
    autojump_clock: MockClock,
) -> None:
    lines = [
        f"  - {{key: key{number}, rate_limit: {{unit: minute, requests_per_unit: 5}}}}"
        for number in range(MAX_LABELS + 50)
    ]
    rules = load_text("domain: api\ndescriptors:\n" + "\n".join(lines)).rules
    async with world("a") as made:
        node = made.nodes["a"]
        app_of(node)
        node.change_rules(rules)
        async with made.client("a") as limiter:
            for number in range(MAX_LABELS + 50):
                await limiter.check("api", {f"key{number}": "x"})
        found = await scrape(node)

    labels = {
        dict(reported)["rule"] for name, reported in found if name == "ringfence_decisions_total"
    }
    assert len(labels) <= MAX_LABELS + 1
    named = {"result": "allowed", "source": "owner"}
    total = sum(
        count
        for (name, reported), count in found.items()
        if name == "ringfence_decisions_total" and named.items() <= dict(reported).items()
    )
    assert total == MAX_LABELS + 50
    assert value(found, "ringfence_decisions_total", rule=OTHER_RULES, **named) >= 50
    assert value(found, "ringfence_rule_reloads_total", result="in_force") == 1


async def test_rules_that_differ_or_were_rejected_are_in_the_metrics(
    autojump_clock: MockClock,
) -> None:
    async with world("a", "b") as made:
        same = [await scrape(node) for node in made.nodes.values()]
        made.nodes["a"].change_rules(load_text("domain: other").rules)
        made.nodes["b"].rules.refusal = "api.yaml:3: unknown key"
        await trio.sleep(1.0)
        changed = [await scrape(node) for node in made.nodes.values()]

    hashes = [value(each, "ringfence_rules_hash") for each in (*same, *changed)]
    assert hashes[0] == hashes[1] == hashes[3] != hashes[2]
    assert [value(each, "ringfence_rules_refused") for each in changed] == [0, 1]


async def test_the_expiry_of_certificates_is_a_metric(autojump_clock: MockClock) -> None:
    async with world("a") as made:
        made.nodes["a"].certificates_expire = {"node": 1.8e9, "ca": 1.9e9}
        found = await scrape(made.nodes["a"])

    name = "ringfence_certificate_expiry_timestamp_seconds"
    assert value(found, name, certificate="node") == 1.8e9
    assert value(found, name, certificate="ca") == 1.9e9


async def test_refusal_metrics_have_the_cause_as_label(autojump_clock: MockClock) -> None:
    async with world("a") as made:
        app = app_of(made.nodes["a"])
        await ask(app, "/nothing")
        found = await scrape(made.nodes["a"])

    assert value(found, "ringfence_refusals_total", cause="http_404") == 1


async def test_metrics_are_rendered_at_most_once_a_second(autojump_clock: MockClock) -> None:
    async with world("a") as made:
        app = app_of(made.nodes["a"])
        first = await ask(app, "/metrics")
        await spend(made, 1)
        second = await ask(app, "/metrics")

    assert first.body == second.body


def test_metrics_include_the_resources_of_the_process() -> None:
    text, _ = render([], "")

    assert "process_cpu_seconds_total" in text.decode()


@pytest.mark.parametrize("staleness_and_sum", [(0.005, 1.0), (0.3, 2.0)])
async def test_the_staleness_of_counts_is_a_histogram(
    autojump_clock: MockClock, staleness_and_sum: tuple[float, float]
) -> None:
    ms, sum_ = round(staleness_and_sum[0] * 1000), staleness_and_sum[1]
    async with world("a") as made:
        cross_dc_counts = made.nodes["a"].shards.cross_dc
        cross_dc_counts._staleness[10 if ms <= 10 else 300] += 1
        cross_dc_counts._staleness_sum_ms += round(sum_ * 1000)
        found = await scrape(made.nodes["a"])

    name = "ringfence_cell_staleness_seconds"
    assert value(found, f"{name}_count") == 1
    assert value(found, f"{name}_sum") == sum_
    assert value(found, f"{name}_bucket", le="0.01") == (ms <= 10)
    assert value(found, f"{name}_bucket", le="0.3") == 1
