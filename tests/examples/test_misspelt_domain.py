"""A misspelt domain behind real proxies: requests pass, and the gateway logs the known domains."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.examples.cluster import EXAMPLES
from tests.examples.proxies import Proxies, running_envoy
from tests.node.end_to_end.test_serve import started
from tests.ringfence.gateway.processes import fetch, gateway, is_up, until


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    flags = {"a": ["--name", "a", "--rules", str(EXAMPLES / "rules")]}
    with started(tmp_path_factory.mktemp("node"), flags) as running:
        yield running["a"].url


def test_nginx_of_the_example_limits_and_a_misspelt_domain_is_logged_at_the_start(
    node: str, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        right = stack.enter_context(gateway(tmp_path, node))
        wrong = stack.enter_context(gateway(tmp_path, node, "--domain", "apii"))
        statuses = {}
        for place, each in (("right", right), ("wrong", wrong)):
            folder = tmp_path / place
            folder.mkdir()
            nginx = Proxies([each, each], folder, stack)._start_nginx()
            until(lambda url=nginx: is_up(url))
            statuses[place] = [fetch(f"{nginx}/").status for _ in range(330)]

        assert statuses["right"].count(429) >= 1
        assert set(statuses["wrong"]) == {200}
        assert "domain 'apii' has no rules" in wrong.log
        assert "did you mean 'api'? the cluster has api, log, web" in wrong.log
        assert "has no rules" not in right.log
        metrics = fetch(f"{wrong.url}/metrics").body.decode()
        assert 'ringfence_gateway_unmatched_checks_total{domain="unknown"} 33' in metrics


def test_envoys_misspelt_domain_is_logged_with_the_first_request(node: str, tmp_path: Path) -> None:
    with (
        gateway(tmp_path, node) as asked,
        running_envoy(tmp_path, [asked.grpc_port] * 3, domain="apii") as envoy,
    ):
        statuses = [fetch(f"{envoy}/", headers={"x-client": "me"}).status for _ in range(5)]

        assert statuses == [200] * 5
        assert asked.log.count("domain 'apii' has no rules") == 1
        assert "did you mean 'api'? the cluster has api, log, web" in asked.log


def test_a_strict_gateway_stays_not_ready_and_says_why(node: str, tmp_path: Path) -> None:
    with gateway(tmp_path, node, "--domain", "apii", "--strict", ready=False) as refusing:
        until(lambda: "the gateway cannot serve" in refusing.log)

        assert "domain 'apii' has no rules" in refusing.log
        assert fetch(f"{refusing.url}/readyz").status == 503
