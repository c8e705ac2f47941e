"""Fixtures of the command's tests: the command in this process, and a cluster of two nodes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from node.demo.cluster import DemoCluster
from tests.invocation import Ran, Run, invoke
from tests.node.cli.cluster_rules import RULES
from tests.node.real_cluster import real_cluster


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command in this process."""
    monkeypatch.delenv("RINGFENCE_URL", raising=False)
    monkeypatch.delenv("COLUMNS", raising=False)

    def run_command(*words: str | Path) -> Ran:
        return invoke(monkeypatch, capsys, *words)

    return run_command


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DemoCluster]:
    """Start two node processes with keys and a token with the scopes `check` and `observe`."""
    path = tmp_path_factory.mktemp("cluster") / "rules.yaml"
    path.write_text(RULES, "utf-8")
    with real_cluster(path, ("a", "b"), "check,observe") as nodes:
        yield nodes


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """Return a client descriptor that no other test uses."""
    return f"client={request.node.name}"
