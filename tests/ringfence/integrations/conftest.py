from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from node.demo.cluster import DemoCluster
from ringfence.client.blocking.blocking_limiter import BlockingLimiter, local
from ringfence.rules import RuleSet
from tests.node.real_cluster import real_cluster

START = 1_700_000_000.5


class HandClock:
    """Clock that only `advance` moves; `time.time()` returns the same instant."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = START
        monkeypatch.setattr("time.time", lambda: self.seconds)

    def now(self) -> int:
        return round(self.seconds * 1e9)

    def advance(self, seconds: float) -> None:
        self.seconds += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> HandClock:
    return HandClock(monkeypatch)


@pytest.fixture
def limiter(clock: HandClock) -> Iterator[BlockingLimiter]:
    with local(RuleSet(), clock=clock) as made:
        yield made


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DemoCluster]:
    """Run two real nodes; each test must use its own keys."""
    with two_nodes(tmp_path_factory.mktemp("cluster")) as nodes:
        yield nodes


@contextmanager
def two_nodes(directory: Path) -> Iterator[DemoCluster]:
    rules = directory / "rules.yaml"
    rules.write_text(
        "domain: jobs\ndescriptors:\n"
        "  - key: mail\n    rate_limit: {unit: second, requests_per_unit: 5}\n",
        "utf-8",
    )
    with real_cluster(rules, ("a", "b"), "check,reset,observe,admin") as nodes:
        yield nodes
