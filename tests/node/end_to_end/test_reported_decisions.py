"""Reports of decisions that clients made locally: each counts once in the nodes' metrics."""

from collections import Counter

import trio
from msgpack import packb
from msgspec.structs import replace
from trio.testing import MockClock

from node.config.access import Access
from ringfence.client.decision import Decision
from ringfence.client.limiter import Limiter
from ringfence.limiter import Code
from ringfence.rules.loading.yaml_files import load_text
from ringfence.settings.token_file import Scope
from ringfence.wire import (
    MAX_REPORT_DECISIONS,
    Done,
    ErrorCode,
    Hello,
    Refused,
    Report,
    Role,
    Source,
)
from tests.node.cluster import World, counter, owned, world
from tests.node.requests.sessions.session_world import ACCESS, APP, SECRET, running_node

HOT = """
domain: api
descriptors:
  - key: client
    rate_limit: {unit: minute, requests_per_unit: 5, algorithm: fixed_window}
  - key: tenant
    rate_limit: {unit: minute, requests_per_unit: 100000, algorithm: token_bucket}
  - key: strict
    rate_limit: {unit: minute, requests_per_unit: 5, on_failure: deny}
  - key: alone
    rate_limit: {unit: minute, requests_per_unit: 2, algorithm: fixed_window, on_failure: local}
"""
DecisionCounts = Counter[tuple[str, str, str]]


def count_decisions(w: World) -> DecisionCounts:
    """Return the sum of `ringfence_decisions_total` over all nodes."""
    found: DecisionCounts = Counter()
    for node in w.nodes.values():
        found.update(node.queries.measure().decisions())
    return found


def record(seen: DecisionCounts, *decisions: Decision) -> None:
    for each in decisions:
        assert each.rule is not None
        result = "allowed" if each.allowed else "denied"
        seen[f"api > {each.rule.path[0][0]}", result, str(each.source)] += 1


def most_denied(w: World) -> list[tuple[bytes, int]]:
    found: Counter[bytes] = Counter()
    for node in w.nodes.values():
        found.update({each.key: each.denied for each in node.queries.measure().throttled.most(100)})
    return found.most_common()


async def send_checks(limiter: Limiter, w: World, seen: DecisionCounts) -> None:
    """Check hot keys through each call, keys over their limit, and cold keys."""
    worst = owned(w.rules, "client", "c")
    bad = owned(w.rules, "client", "a")
    tenant = owned(w.rules, "tenant", "b")
    for step in range(60):
        record(seen, *(await limiter.check_many("api", [worst] * 30 + [tenant] * 50)))
        record(seen, *(await limiter.check_many("api", [worst] * 20)))
        for _ in range(20):
            record(seen, await limiter.check("api", tenant, cost=3))
            record(seen, await limiter.check("api", bad))
            now = limiter.check_now("api", bad)
            if now is not None:
                record(seen, now)
        record(seen, *(await limiter.check_many("api", [tenant] * 30, costs=[2] * 30)))
        record(seen, await limiter.check("api", {"tenant": f"cold{step}"}))
        await trio.sleep(0.03)


async def test_metrics_of_all_nodes_match_the_decisions_of_clients(
    autojump_clock: MockClock,
) -> None:
    seen: DecisionCounts = Counter()
    async with world(rules=HOT) as w:
        count_decisions(w)  # From here on, decisions are counted.
        async with w.client() as one, w.client("b") as two, trio.open_nursery() as tasks:
            tasks.start_soon(send_checks, one, w, seen)
            tasks.start_soon(send_checks, two, w, seen)
            await trio.sleep(4.0)
            found = count_decisions(w)
            worst = most_denied(w)

    assert found == seen
    assert seen["api > tenant", "allowed", "lease"] > 5000
    assert seen["api > client", "denied", "cache"] > 5000
    assert seen["api > tenant", "allowed", "owner"] > 60
    [(first, most), (second, second_most)] = worst
    assert first == counter(w.rules, "client", owned(w.rules, "client", "c")["client"])
    assert second == counter(w.rules, "client", owned(w.rules, "client", "a")["client"])
    assert most > second_most
    assert most + second_most == sum(
        count for (_, result, _), count in seen.items() if result == "denied"
    )


async def test_detailed_metrics_count_decisions_of_clients_by_value(
    autojump_clock: MockClock,
) -> None:
    rules = HOT.replace("- key: client\n", "- key: client\n    detailed_metric: true\n")
    rules = rules.replace("- key: tenant\n", "- key: tenant\n    value_to_metric: true\n")
    async with world(rules=rules) as w:
        count_decisions(w)
        async with w.client() as limiter:
            for _ in range(20):
                await limiter.check("api", {"client": "x"})
            for _ in range(60):
                await limiter.check("api", {"tenant": "t"})
                await trio.sleep(0.01)
        found: Counter[tuple[str, str]] = Counter()
        for node in w.nodes.values():
            found.update(node.queries.measure().detailed_decisions())

    assert found == {
        ("api.client_x", "allowed"): 5,
        ("api.client_x", "denied"): 15,
        ("api.tenant_t", "allowed"): 60,
    }


async def test_a_client_reports_its_decisions_before_it_closes(autojump_clock: MockClock) -> None:
    seen: DecisionCounts = Counter()
    async with world(rules=HOT) as w:
        count_decisions(w)
        async with w.client() as limiter:
            for _ in range(20):
                record(seen, await limiter.check("api", {"client": "x"}))
        found = count_decisions(w)

    assert found == seen
    assert seen["api > client", "denied", "cache"] == 14


async def test_decisions_of_a_failure_policy_are_reported_after_reconnection(
    autojump_clock: MockClock,
) -> None:
    seen: DecisionCounts = Counter()
    async with world("a", rules=HOT) as w, w.client("a") as limiter:
        await limiter.check("api", {"tenant": "x"})
        w.scopes["a"].cancel()
        w.network.crash(("a", 7101))
        await trio.sleep(1.0)
        for _ in range(7):
            for key in ("tenant", "strict", "alone"):
                record(seen, await limiter.check("api", {key: "x"}))
        before = w.count("a", "reported_undecided")
        await w.start("a")
        await trio.sleep(8.0)
        undecided = w.count("a", "reported_undecided")

    assert seen == {
        ("api > tenant", "allowed", "policy"): 7,
        ("api > strict", "denied", "policy"): 7,
        ("api > alone", "allowed", "local"): 2,
        ("api > alone", "denied", "local"): 5,
    }
    assert (before, undecided) == (0, 21)


async def test_a_report_with_a_lost_answer_counts_once(autojump_clock: MockClock) -> None:
    async with world("a", rules=HOT) as w, w.client("a") as limiter:
        count_decisions(w)
        for _ in range(20):
            await limiter.check("api", {"client": "x"})
        caches = w.nodes["a"]._api.caches
        record_report = caches.record_report

        def cut_off(name: str, report: Report) -> None:
            record_report(name, report)
            w.network.cut(("a", 7101), ("client1", 1))
            caches.record_report = record_report  # type: ignore[method-assign]

        caches.record_report = cut_off  # type: ignore[method-assign]
        await trio.sleep(3.0)
        w.network.heal(("a", 7101), ("client1", 1))
        await trio.sleep(8.0)
        found = count_decisions(w)

    assert found["api > client", "denied", "cache"] == 14
    assert w.count("a", "reports") == 1
    assert w.count("a", "repeated_reports") >= 1


def report_of(*rows: tuple[bytes, int, int, int], number: int = 1, named: int = 0) -> Report:
    columns = [list(column) for column in zip(*rows, strict=True)]
    return Report(7, 99, number, named, *columns)


RULE_ID = b"ruleidnt"
DENIED = Code.DENIED.value, Source.CACHE.value


async def test_a_report_is_answered_and_a_repeat_is_not_counted(autojump_clock: MockClock) -> None:
    async with running_node() as w:
        caller = await w.call(APP)
        first = await caller.send(report_of((RULE_ID, *DENIED, 5)))
        again = await caller.send(report_of((RULE_ID, *DENIED, 5)))
        counters = w.node.queries.stats(1).counters

    assert first == again == [Done(7)]
    assert counters["reported_denied"] == 5
    assert (counters["reports"], counters["repeated_reports"]) == (1, 1)


async def test_too_many_reports_are_rejected(autojump_clock: MockClock) -> None:
    async with running_node() as w:
        caller = await w.call(APP)
        reports = [report_of((RULE_ID, *DENIED, 1), number=number) for number in range(1, 21)]
        received = await caller.send(*reports)
        counters = w.node.queries.stats(1).counters

    codes = [each.code for each in received if isinstance(each, Refused)]
    assert codes == [ErrorCode.OVERLOADED] * 12
    assert counters["reported_denied"] == 8
    assert counters["refused_report_pace"] == 12


async def test_a_report_of_too_many_decisions_closes_the_connection(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as w:
        caller = await w.call(APP)
        await caller.send(oversized_report(MAX_REPORT_DECISIONS + 1))

        assert caller.closed[0][0] == ErrorCode.BAD_MESSAGE


def oversized_report(count: int) -> bytes:
    payload: bytes = packb([41, 1, 1, 1, 0, [RULE_ID], [2], [5], [count]])
    return payload


async def test_only_clients_with_the_scope_check_can_report(autojump_clock: MockClock) -> None:
    tokens = {"app": replace(ACCESS.tokens["app"], scopes=frozenset({Scope.OBSERVE}))}
    async with running_node() as w:
        w.node.change_access(Access(ACCESS.cluster_keys, ACCESS.cluster, tokens))
        received = []
        for hello in (Hello(Role.CLIENT, "app", SECRET, 1), Hello(Role.NODE, "b", b"", 2)):
            caller = await w.call(hello)
            received += await caller.send(report_of((RULE_ID, *DENIED, 1)))
        counters = w.node.queries.stats(1).counters

    assert [each.code for each in received if isinstance(each, Refused)] == [
        ErrorCode.NOT_PERMITTED,
        ErrorCode.NOT_PERMITTED,
    ]
    assert counters["reported_denied"] == 0


async def test_a_token_of_some_domains_reports_only_decisions_of_their_rules(
    autojump_clock: MockClock,
) -> None:
    rules = load_text(HOT).rules
    tokens = {"app": replace(ACCESS.tokens["app"], domains=frozenset({"api"}))}
    access = Access(ACCESS.cluster_keys, ACCESS.cluster, tokens)
    permitted_key = counter(rules, "client", "x")
    async with running_node(rules) as w:
        measures = w.node.queries.measure()
        w.node.change_access(access)
        caller = await w.call(APP)
        await caller.send(report_of((permitted_key, *DENIED, 3), (RULE_ID, *DENIED, 4), named=1))
        counters = w.node.queries.stats(1).counters

    assert measures.decisions() == {("api > client", "denied", "cache"): 3}
    assert measures.throttled.total == 3
    assert counters["reported_denied"] == 3
    assert counters["refused_report_domain"] == 1


async def test_unknown_rules_in_reports_share_one_label(autojump_clock: MockClock) -> None:
    async with running_node() as w:
        measures = w.node.queries.measure()
        caller = await w.call(APP)
        for number in range(1, 9):
            rows = [((number * 1000 + at).to_bytes(8, "big"), *DENIED, 1) for at in range(500)]
            await caller.send(report_of(*rows, number=number))

    assert measures.decisions() == {("(no rule here)", "denied", "cache"): 4000}
