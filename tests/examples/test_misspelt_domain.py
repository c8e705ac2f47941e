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


def test_the_nginx_example_limits_and_a_misspelt_domain_is_logged_at_startup(
    node: str, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        right = stack.enter_context(gateway(tmp_path, node))
        wrong = stack.enter_context(gateway(tmp_path, node, "--domain", "apii"))
        statuses = {}
        for name, gate in (("right", right), ("wrong", wrong)):
            folder = tmp_path / name
            folder.mkdir()
            nginx = Proxies([gate, gate], folder, stack)._start_nginx()
            until(lambda url=nginx: is_up(url))
            statuses[name] = [fetch(f"{nginx}/").status for _ in range(330)]

        assert statuses["right"].count(429) >= 1
        assert set(statuses["wrong"]) == {200}
        assert "domain 'apii' has no rules" in wrong.log
        assert "did you mean 'api'? there are rules for api, log, web" in wrong.log
        assert "has no rules" not in right.log
        metrics = fetch(f"{wrong.url}/metrics").body.decode()
        assert 'ringfence_gateway_unmatched_checks_total{domain="unknown"} 33' in metrics


def test_a_misspelt_domain_of_envoy_is_logged_at_the_first_request(
    node: str, tmp_path: Path
) -> None:
    with (
        gateway(tmp_path, node) as gate,
        running_envoy(tmp_path, [gate.grpc_port] * 3, domain="apii") as envoy,
    ):
        statuses = [fetch(f"{envoy}/", headers={"x-client": "me"}).status for _ in range(5)]

        assert statuses == [200] * 5
        assert gate.log.count("domain 'apii' has no rules") == 1
        assert "did you mean 'api'? there are rules for api, log, web" in gate.log


def test_a_strict_gateway_stays_not_ready_and_logs_the_reason(node: str, tmp_path: Path) -> None:
    with gateway(tmp_path, node, "--domain", "apii", "--strict", ready=False) as gate:
        until(lambda: "the gateway cannot serve" in gate.log)

        assert "domain 'apii' has no rules" in gate.log
        assert fetch(f"{gate.url}/readyz").status == 503
