"""Admin application on nodes in memory: content and authorization of each path."""

from collections.abc import Mapping

import pytest
import trio
from trio.testing import MockClock

from hashring import shard_of
from node.admin.app import AdminApp
from node.admin.throttle import Throttle
from node.config.access import Access
from node.node import Node
from ringfence.rules.loading.yaml_files import load_text
from ringfence.settings.token_file import Scope, TokenEntry
from ringfence.wire import token_digest
from tests.node.admin.asking import Answer, app_of, ask
from tests.node.cluster import counter, owned, world

SECRET = bytes(range(32))


def require_tokens(node: Node, **scopes: tuple[Scope, ...]) -> None:
    """Make the node require tokens. Each keyword is the name of a token with its scopes."""
    tokens = {
        name: TokenEntry(token_digest(SECRET), frozenset(each)) for name, each in scopes.items()
    }
    node.change_access(Access(tokens=tokens))


def bearer(name: str) -> Mapping[str, str]:
    return {"host": "node.example.org:7180", "authorization": f"Bearer {name}.{SECRET.hex()}"}


async def test_health_checks_and_rejections_bypass_the_throttle_and_close_the_connection(
    autojump_clock: MockClock,
) -> None:
    async with world("a") as made:
        require_tokens(made.nodes["a"], operator=(Scope.OBSERVE,))
        app = AdminApp(made.nodes["a"], Throttle(0.001, 1))
        started_at = trio.current_time()
        first = await ask(app, "/v1/ring", headers=bearer("operator"))
        answers = [
            await ask(app, "/healthz"),
            await ask(app, "/readyz"),
            await ask(app, "/metrics"),
            await ask(app, "/metrics", headers=bearer("another")),
            await ask(app, "/nothing"),
            await ask(app, "/v1/ring", method="POST"),
        ]
        waited = trio.current_time() - started_at

    assert [each.status for each in answers] == [200, 200, 401, 401, 404, 405]
    assert all(each.headers["connection"] == "close" for each in answers)
    assert "connection" not in first.headers
    assert waited == 0


async def test_the_members_view_shows_the_nodes_own_membership(autojump_clock: MockClock) -> None:
    async with world("a", "b") as made:
        answer = await ask(app_of(made.nodes["a"]), "/v1/members")

    rows = answer.json["members"]
    assert answer.status == 200
    assert answer.json["asked"] == "a"
    assert [(row["name"], row["state"]) for row in rows] == [(n, "alive") for n in "ab"]
    assert sum(row["owned_shards"] for row in rows) == 16384


async def test_the_ring_view_shows_shares_and_the_owner_of_a_shard(
    autojump_clock: MockClock,
) -> None:
    async with world("a", "b") as made:
        app = app_of(made.nodes["a"])
        ring_view = (await ask(app, "/v1/ring")).json
        shard_view = (await ask(app, "/v1/ring?shard=77")).json["shard"]
        ring = made.nodes["a"].cluster.ring

    assert [row["name"] for row in ring_view["datacenters"]["dc1"]] == ["a", "b"]
    assert ring_view["here"]["held_shards"] == ring_view["here"]["owned_shards"]
    assert shard_view["datacenters"]["dc1"] == {
        "owner": ring.owner(77),
        "standby": ring.standby(77),
    }
    assert shard_view["here"] is (ring.owner(77) == "a")


async def test_a_node_without_an_admin_port_collects_no_detailed_metrics(
    autojump_clock: MockClock,
) -> None:
    async with world("a") as made:
        node = made.nodes["a"]
        before = node.metrics.active
        app_of(node)

        assert before is None
        assert node.metrics.active is not None


async def test_the_rules_view_shows_identity_bound_and_keys(autojump_clock: MockClock) -> None:
    async with world("a") as made, made.client("a") as limiter:
        await limiter.check("api", {"client": "x"})
        app = app_of(made.nodes["a"])
        reported = (await ask(app, "/v1/rules")).json
        [rule] = [each for each in made.rules.rules() if each.path == (("client", None),)]

    rows = {row["label"]: row for row in reported["rules"] if row["depth"]}
    assert reported["count"] == len(rows) == 5
    assert rows["client"]["identity"] == f"{rule.id:016x}"
    assert rows["client"]["limit"] == "5/minute fixed_window"
    assert rows["client"]["worst"] == 10
    assert (rows["client"]["keys"], rows["tenant"]["keys"]) == (1, 0)


async def test_the_rules_view_shows_the_bound_of_global_rules(autojump_clock: MockClock) -> None:
    rules = """
domain: api
descriptors:
  - key: client
    rate_limit: {unit: minute, requests_per_unit: 100, scope: global}
"""
    async with world("a", rules=rules) as made:
        await made.start("b", datacenter="dc2")
        await made.settle()
        await trio.sleep(10)  # until b has been probed
        reported = (await ask(app_of(made.nodes["a"]), "/v1/rules")).json

    assert reported["datacenters"]["count"] == 2
    [row] = [row for row in reported["rules"] if row["depth"]]
    assert row["scope"] == "global"
    assert 100 < row["cross_dc"]["bound"] <= row["cross_dc"]["ceiling"] == 200


@pytest.mark.parametrize(("owner", "is_here"), [("a", True), ("b", False)])
async def test_any_node_can_show_a_key_of_any_owner(
    autojump_clock: MockClock, owner: str, is_here: bool
) -> None:
    async with world() as made, made.client() as limiter:
        descriptor = owned(made.rules, "client", owner)
        for _ in range(3):
            await limiter.check("api", descriptor)
        value = descriptor["client"]
        reported = (await ask(app_of(made.nodes["a"]), f"/v1/keys/api?client={value}")).json
        shard = shard_of(counter(made.rules, "client", value))

    assert (reported["owner"], reported["here"], reported["shard"]) == (owner, is_here, shard)
    assert reported["rule"] == "api > client"
    assert reported["counter"] == [["client", value]]
    state = reported["state"]
    assert (state["decided_by"], state["limit"], state["remaining"]) == ("owner", 5, 2)
    assert (state["retry_after"], state["reset_after"]) == (0, 30)  # in the middle of a minute


async def test_reading_a_key_spends_nothing(autojump_clock: MockClock) -> None:
    async with world("a") as made:
        app = app_of(made.nodes["a"])
        reported = [(await ask(app, "/v1/keys/api?client=x")).json["state"] for _ in range(9)]

    assert {state["remaining"] for state in reported} == {5}


async def test_the_standby_shows_a_key_of_a_dead_member(autojump_clock: MockClock) -> None:
    async with world("a", "b") as made:
        node = made.nodes["a"]
        keys = {f"x{number}": counter(made.rules, "client", f"x{number}") for number in range(40)}
        value_of_b = next(
            value for value in keys if node.cluster.ring.owner(shard_of(keys[value])) == "b"
        )
        await made.crash("b")
        reported = (await ask(app_of(node), f"/v1/keys/api?client={value_of_b}")).json

    assert (reported["owner"], reported["standby"]) == ("b", "a")
    assert reported["state"]["decided_by"] == "standby"


@pytest.mark.parametrize(
    ("path", "status", "title"),
    [
        ("/v1/keys/api", 400, "no descriptor"),
        ("/v1/keys/shop?client=x", 404, "no rules for domain"),
        ("/v1/keys/api?color=red", 404, "no rule of domain"),
        ("/v1/keys/", 404, "unknown path"),
        ("/v1/nothing", 404, "unknown path"),
        ("/v1/ring?shard=16384", 400, "a number from 0 to 16383, got"),
        ("/v1/ring?shard=-1", 400, "must be a number"),
        ("/v1/throttled?count=0", 400, "a number from 1"),
        ("/v1/keys/api?" + "&".join(["a=b"] * 40), 400, "at most 32 fields"),
        ("/v1/keys/%ff%00?client=%ff", 404, "no rules for domain"),
    ],
)
async def test_an_invalid_request_is_answered_with_reason_and_remedy(
    autojump_clock: MockClock, path: str, status: int, title: str
) -> None:
    async with world("a") as made:
        answer = await ask(app_of(made.nodes["a"]), path)

    assert answer.status == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert title in answer.json["title"]
    assert answer.json["detail"]


async def test_a_request_for_an_unknown_domain_is_answered_with_the_known_ones(
    autojump_clock: MockClock,
) -> None:
    async with world("a") as made:
        answer = await ask(app_of(made.nodes["a"]), "/v1/keys/shop?client=x")

    assert answer.json["detail"] == "known are api"


async def test_the_throttled_view_names_the_denied_keys(autojump_clock: MockClock) -> None:
    async with world("a") as made, made.client("a", denials=0) as limiter:
        app = app_of(made.nodes["a"])
        for client, times in (("greedy", 9), ("modest", 6), ("good", 2)):
            for _ in range(times):
                await limiter.check("api", {"client": client})
        await trio.sleep(1.0)
        reported = (await ask(app, "/v1/throttled")).json
        first = (await ask(app, "/v1/throttled?count=1")).json["keys"]

    assert reported["denied"] == 5
    rows = [(row["rule"], row["counter"], row["denied"]) for row in reported["keys"]]
    assert rows == [
        ("api > client", [["client", "greedy"]], 4),
        ("api > client", [["client", "modest"]], 1),
    ]
    assert [row["denied"] for row in first] == [4]


async def test_denials_expire(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.metrics.detailed.PERIOD", 1.0)
    async with world("a") as made, made.client("a") as limiter:
        app = app_of(made.nodes["a"])
        for _ in range(6):
            await limiter.check("api", {"client": "x"})
        soon = (await ask(app, "/v1/throttled")).json["denied"]
        await trio.sleep(2.5)
        later = (await ask(app, "/v1/throttled")).json["denied"]

    assert (soon, later) == (1, 0)


async def test_the_cluster_summary_has_the_figures_of_every_member(
    autojump_clock: MockClock,
) -> None:
    async with world() as made, made.client() as limiter:
        apps = [app_of(node) for node in made.nodes.values()]
        for name in made.nodes:
            for _ in range(6):
                await limiter.check("api", owned(made.rules, "client", name))
        reported = (await ask(apps[0], "/v1/cluster")).json
        throttled = (await ask(apps[0], "/v1/throttled")).json

    assert reported["state"] == "alive"
    assert {name: row["denied"] for name, row in reported["figures"].items()} == dict.fromkeys(
        "abc", 1
    )
    assert reported["rules"] == [{"rule": "api > client", "allowed": 15, "denied": 3, "watched": 0}]
    assert reported["throttled"]["nodes"] == dict.fromkeys("abc", 1)
    owners = [(row["owner"], row["denied"]) for row in reported["throttled"]["keys"]]
    assert sorted(owners) == [("a", 1), ("b", 1), ("c", 1)]
    assert throttled == reported["throttled"]


async def test_the_most_denied_key_of_all_nodes_is_first_at_any_node(
    autojump_clock: MockClock,
) -> None:
    async with world() as made:
        apps = [app_of(made.nodes[name]) for name in "abc"]
        await ask(apps[1], "/v1/throttled")  # From now on all nodes count denials per key.
        async with made.client("a") as limiter:
            for name, times in (("a", 40), ("b", 20), ("c", 200)):
                for _ in range(times):
                    await limiter.check("api", owned(made.rules, "client", name))
            await trio.sleep(2.0)
            answers = [(await ask(app, "/v1/throttled")).json for app in apps]

    for reported in answers:
        rows = [(row["owner"], row["denied"], row["error"]) for row in reported["keys"]]
        assert rows == [("c", 195, 0), ("a", 35, 0), ("b", 15, 0)]
        assert reported["denied"] == 245
        assert reported["missing"] == []
        assert sum(reported["keys"][0]["nodes"].values()) == 195


async def test_a_key_of_a_removed_rule_keeps_its_name(autojump_clock: MockClock) -> None:
    async with world("a") as made, made.client("a") as limiter:
        app = app_of(made.nodes["a"])
        for _ in range(6):
            await limiter.check("api", {"client": "x"})
        made.nodes["a"].change_rules(load_text("domain: other").rules)
        [row] = (await ask(app, "/v1/throttled")).json["keys"]

    assert (row["rule"], row["removed"]) == ("api > client", True)
    assert row["counter"] == [["client", "x"]]


async def test_the_summary_shows_problems_of_the_cluster(
    autojump_clock: MockClock,
) -> None:
    async with world("a", "b") as made:
        app = app_of(made.nodes["a"])
        made.nodes["a"].rules.refusal = "api.yaml:3: unknown key"
        made.nodes["b"].change_rules(load_text("domain: other").rules)
        reported = (await ask(app, "/v1/cluster")).json
        await made.crash("b")
        await trio.sleep(30.0)
        reported_later = (await ask(app, "/v1/cluster")).json
        later = {row["name"]: row for row in reported_later["members"]}

    assert reported["rules_refusal"] == "api.yaml:3: unknown key"
    assert {name: row["rules_refused"] for name, row in reported["figures"].items()} == {
        "a": 1,
        "b": 0,
    }
    assert reported["figures"]["a"]["rules_hash"] != reported["figures"]["b"]["rules_hash"]
    assert later["b"]["state"] == "dead"
    assert reported_later["throttled"]["missing"] == ["b"]
    assert 20 < later["b"]["state_for_s"] < 30
    assert later["a"]["state_for_s"] > 30


async def test_a_silent_member_does_not_delay_the_cluster_summary(
    autojump_clock: MockClock,
) -> None:
    async with world("a", "b") as made:
        app = app_of(made.nodes["a"])
        await made.crash("b")
        started_at = trio.current_time()
        reported = (await ask(app, "/v1/cluster")).json

        assert trio.current_time() - started_at < 1
    assert sorted(reported["figures"]) == ["a"]
    assert reported["missing"] == ["b"]


async def test_the_page_may_run_and_load_only_its_own_content(autojump_clock: MockClock) -> None:
    async with world("a") as made:
        answer = await ask(app_of(made.nodes["a"]), "/")

    policy = answer.headers["content-security-policy"]
    assert answer.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in policy
    assert policy.count("sha256-") == 2
    text = answer.body.decode().replace("http://www.w3.org/2000/svg", "")
    assert "http" not in text.partition("<style>")[2]
    assert "innerHTML" not in text


# -- health --------------------------------------------------------------------------------------


async def test_a_node_is_ready_from_joining_to_leaving(autojump_clock: MockClock) -> None:
    states: list[Answer] = []
    async with world("a", "b") as made:
        node = made.nodes["a"]
        app = app_of(node)
        states.append(await ask(app, "/readyz"))
        node.ask_to_leave()
        states.append(await ask(app, "/readyz"))
        await made.stop("a")
        states.append(await ask(app, "/readyz"))
        alive = await ask(app, "/healthz")

    assert [answer.status for answer in states] == [200, 503, 503]
    assert states[0].json == {"status": "ready", "node": "a", "state": "alive"}
    assert states[1].json["title"] == "node a is leaving"
    assert states[2].json["title"] == "node a is left"
    assert alive.status == 200


async def test_a_node_that_joins_is_not_ready(autojump_clock: MockClock) -> None:
    async with world("a") as made:
        apps: list[AdminApp] = []
        statuses: list[int] = []

        async def watch() -> None:
            while "b" not in made.nodes:  # noqa: ASYNC110 - a world has no event for it
                await trio.sleep(0.001)
            apps.append(app_of(made.nodes["b"]))
            statuses.append((await ask(apps[0], "/readyz")).status)

        made.nursery.start_soon(watch)
        await made.start("b")
        await made.settle()
        statuses.append((await ask(apps[0], "/readyz")).status)

    assert statuses == [503, 200]


async def test_health_reports_starting_before_the_node_runs(autojump_clock: MockClock) -> None:
    async with world("a") as made:
        old = made.nodes["a"]
        node = Node(
            old.settings, old.access.current, made.rules, clock=made.clock, random=old._random
        )
        app = app_of(node)

        assert (await ask(app, "/readyz")).json["title"] == "node a is starting"
        assert (await ask(app, "/metrics")).status == 503
        assert (await ask(app, "/healthz")).status == 200


# -- authorization -------------------------------------------------------------------------------

READ = ["/", "/metrics", "/v1/members", "/v1/ring", "/v1/rules", "/v1/keys/api?client=x"]
READ += ["/v1/throttled", "/v1/cluster"]


@pytest.mark.parametrize("path", READ)
async def test_with_keys_every_view_requires_a_token_with_the_observe_scope(
    autojump_clock: MockClock, path: str
) -> None:
    async with world("a") as made:
        node = made.nodes["a"]
        require_tokens(node, ops=(Scope.OBSERVE,), app=(Scope.CHECK,))
        app = app_of(node)
        answers = [
            await ask(app, path),
            await ask(app, path, headers=bearer("stranger")),
            await ask(app, path, headers=bearer("app")),
            await ask(app, path, headers=bearer("ops")),
        ]
        refused = {
            name: count
            for name, count in node.queries.stats(1).counters.items()
            if name.startswith("refused_http")
        }

    assert [answer.status for answer in answers] == [401, 401, 403, 200]
    assert "Basic" in answers[0].headers["www-authenticate"]
    assert "observe" in answers[2].json["title"]
    assert refused == {"refused_http_401": 2, "refused_http_403": 1}


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_health_checks_need_no_token(autojump_clock: MockClock, path: str) -> None:
    async with world("a") as made:
        require_tokens(made.nodes["a"])
        answer = await ask(app_of(made.nodes["a"]), path, headers={"host": "10.0.0.1"})

    assert answer.status == 200


async def test_only_a_token_with_the_admin_scope_can_make_a_node_leave(
    autojump_clock: MockClock,
) -> None:
    async with world("a") as made:
        node = made.nodes["a"]
        require_tokens(node, ops=(Scope.OBSERVE,), root=(Scope.ADMIN,))
        app = app_of(node)

        assert (await ask(app, "/v1/leave", method="POST", headers=bearer("ops"))).status == 403
        assert (await ask(app, "/v1/leave", headers=bearer("root"))).status == 405
        assert not node.asked_to_leave.is_set()
        assert (await ask(app, "/v1/leave", method="POST", headers=bearer("root"))).status == 202
        assert node.asked_to_leave.is_set()


# -- internal errors -----------------------------------------------------------------------------


@pytest.mark.internal_errors
async def test_an_internal_error_gets_500_and_the_next_request_is_served(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world("a") as made:
        app = app_of(made.nodes["a"])
        monkeypatch.setattr(made.nodes["a"].queries, "peers", lambda seq: 1 / 0)
        broken = await ask(app, "/v1/members")
        served = await ask(app, "/healthz")
        metrics = await ask(app, "/metrics")

        assert 'ringfence_internal_errors_total{place="http"} 1.0' in metrics.body.decode()
        assert [type(bug) for bug in made.bugs] == [ZeroDivisionError]
        assert made.count("a", "internal_errors_http") == 1
        made.bugs.clear()
    assert (broken.status, served.status) == (500, 200)
