"""examples/envoy: real Envoy before a three-node cluster."""

import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.examples.cluster import EXAMPLES, Cluster, cluster
from tests.examples.proxies import running_envoy
from tests.ringfence.gateway.processes import Reply, fetch, until

FOLDER = EXAMPLES / "envoy"
MAX_AT_ONCE = 64
REMAINING = "x-ratelimit-remaining"


@dataclass(frozen=True)
class Edge:
    """Envoy before a cluster."""

    url: str
    behind: Cluster

    def get(self, path: str, client: str) -> Reply:
        return fetch(self.url + path, headers={"x-client": client})

    def has_left(self, units: int, **descriptor: str) -> bool:
        body = json.dumps({"domain": "edge", "descriptors": [descriptor]}).encode()
        [gateway, *_] = self.behind.gateways.values()
        headers = {"Content-Type": "application/json"}
        answer = fetch(f"{gateway.url}/v1/peek", body=body, headers=headers)
        return bool(json.loads(answer.body)["remaining"] == units)

    def statuses(self, path: str, client: str, count: int) -> list[int]:
        return [self.get(path, client).status for _ in range(count)]


@contextmanager
def envoy(directory: Path) -> Iterator[Edge]:
    """Run the Envoy of the example before three nodes, each with a gateway."""
    with cluster(directory, FOLDER / "rules") as behind:
        ports = [each.grpc_port for each in behind.gateways.values()]
        with running_envoy(directory, ports) as url:
            yield Edge(url, behind)


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edge]:
    with envoy(tmp_path_factory.mktemp("envoy")) as started:
        yield started


def test_three_requests_per_minute_pass_and_the_fourth_gets_429(edge: Edge) -> None:
    answers = [edge.get("/", "x") for _ in range(4)]

    assert [each.status for each in answers] == [200, 200, 200, 429]
    remaining = [each.headers["x-ratelimit-remaining"] for each in answers]
    assert remaining == ["2", "1", "0", "0"]
    denied = answers[3].headers
    assert denied["x-ratelimit-limit"].startswith("3, 3;w=60")
    assert 1 <= int(denied["retry-after"]) <= 60
    assert 1 <= int(denied["x-ratelimit-reset"]) <= 120
    assert "retry-after" not in answers[0].headers
    assert edge.get("/", "y").status == 200


def test_a_request_without_the_header_has_no_descriptor_and_passes(edge: Edge) -> None:
    assert [fetch(f"{edge.url}/").status for _ in range(5)] == [200] * 5


def test_a_shadow_rule_denies_no_request(edge: Edge) -> None:
    assert edge.statuses("/trial", "x", 4) == [200] * 4


def test_a_rule_that_replaces_another_rule_counts_instead_of_it(edge: Edge) -> None:
    assert edge.statuses("/gold", "g", 6) == [200] * 5 + [429]
    assert edge.get("/", "g").headers["x-ratelimit-remaining"] == "2", (
        "the replaced rule was not charged"
    )


def test_a_descriptor_can_have_its_own_cost_and_a_refund(edge: Edge) -> None:
    assert edge.statuses("/upload", "x", 2) == [200, 200]
    assert edge.get("/upload/undo", "x").status == 200
    assert edge.statuses("/upload", "x", 2) == [200, 429]
    assert edge.get("/upload/undo", "x").status == 200
    assert edge.get("/upload", "x").status == 429, "a denied request is charged, too"


def test_the_fourth_response_of_300_bytes_uses_up_a_budget_of_1000(edge: Edge) -> None:
    """Test costs that Envoy charges by `apply_on_stream_done`, after it has sent the response."""
    statuses = []
    for remaining in (700, 400, 100, 0):
        statuses.append(edge.get("/complete", "x").status)
        until(partial(edge.has_left, remaining, complete="a", client="x"))
    statuses += edge.statuses("/complete", "x", 2)

    assert statuses == [200] * 4 + [429] * 2
    assert edge.get("/complete", "y").status == 200


def test_a_limit_that_envoy_sends_overrides_the_rule(edge: Edge) -> None:
    answers = [edge.get("/own", "o") for _ in range(3)]

    assert [each.status for each in answers] == [200, 200, 429]
    assert answers[0].headers["x-ratelimit-limit"].startswith("2, 2;w=3600")


def test_when_a_host_crashes_no_request_fails_and_every_limit_holds(edge: Edge) -> None:
    # This must be the last test of the module: afterwards, the cluster has only two hosts.
    undecided_before = edge.behind.undecided("a", "b", "c")
    clients = edge.behind.clients("edge", "client", 2)
    for name in [name for names in clients.values() for name in names]:
        assert edge.statuses("/", name, 2) == [200, 200]
    edge.behind.wait_copied()

    other_clients = [f"other-{number}" for number in range(8 * MAX_AT_ONCE)]
    repeated = [name for names in clients.values() for name in names for _ in range(4)]
    with ThreadPoolExecutor(MAX_AT_ONCE) as threads:
        during_crash = [threads.submit(edge.get, "/", name) for name in other_clients]
        wait(during_crash[:MAX_AT_ONCE])
        undecided_at_b = edge.behind.undecided("b")
        edge.behind.kill("b")
        answers = list(threads.map(lambda name: (name, edge.get("/", name).status), repeated))

    # On an overloaded machine, nodes shed checks and gateways refuse calls. These requests pass,
    # and Envoy adds no header with remaining units.
    undecided = edge.behind.undecided("a", "c") + undecided_at_b - undecided_before
    assert {status for _, status in answers} <= {200, 429}
    passed = Counter(name for name, status in answers if status == 200)
    assert passed.keys() == set(repeated), "one unit of each client was left"
    assert passed.total() <= len(passed) + undecided, "every limit holds for counted requests"
    uncounted = [each for each in during_crash if REMAINING not in each.result().headers]
    assert len(uncounted) <= undecided, "every request is counted"
