"""P17: no request makes a path exempt, or makes the gateway count another client.

A real gateway before a real node. The requests are those that a proxy sends for a client.
"""

from collections.abc import Iterator

import httpx
import pytest

from ringfence.integrations.asgi import RateLimitMiddleware
from tests.node.end_to_end.test_serve import nodes
from tests.ringfence.gateway.processes import Gateway, gateway
from tests.ringfence.integrations.asgi.app import hello, in_process
from tests.ringfence.integrations.asgi.client import living, statuses

SPELLINGS = [
    "/static/..;/login",
    "/static/..;a=b/login",
    "/static/;/../login",
    "/static/%2e%2e;/login",
    "/static/..%3b/login",
    "/static;/../login",
    "/static/..%5clogin",
    "/static/%252e%252e/login",
    "/static/..%252flogin",
    "/static/%c0%ae%c0%ae/login",
    "/static//../login",
    "/login/..%2fstatic/x",
    "/login/%2e%2e/static/x",
    "/login/../static/x",
    "http://other/static/../login",
]
"""Paths of which each is a page below /login for at least one web server."""


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    directory = tmp_path_factory.mktemp("gateway")
    config = directory / "gateway.toml"
    config.write_text('exempt_paths = ["/static"]\n', "utf-8")
    with (
        nodes(directory, "a", amount=3) as running,
        gateway(directory, running["a"].url, "--config", str(config)) as started,
    ):
        yield started


def status(gate: Gateway, client: str | bytes | None, path: str = "/page") -> int:
    headers: dict[str, str | bytes] = {"X-Forwarded-Uri": path, "X-Forwarded-Method": "GET"}
    if client is not None:
        headers["X-Forwarded-For"] = client
    return httpx.get(f"{gate.url}/v1/auth", headers=headers, timeout=60).status_code


def test_a_path_that_servers_resolve_differently_is_not_exempt(gate: Gateway) -> None:
    client = "203.0.113.1"
    for _ in range(3):
        assert status(gate, client) == 200

    not_denied = [path for path in SPELLINGS if status(gate, client, path) != 429]

    assert not_denied == []
    assert status(gate, client, "/static/site.css") == 200


def test_an_invalid_client_address_is_not_counted_as_the_proxy(gate: Gateway) -> None:
    invalid = [status(gate, client) for client in ("rubbish", "a.b.c.d", "unknown", "")]
    not_ascii = [status(gate, b"\xff"), status(gate, b"\xff, 203.0.113.2")]
    from_proxy = [status(gate, None) for _ in range(4)]

    assert invalid == [200, 200, 200, 429], "invalid addresses share one budget"
    assert not_ascii == [429, 429]
    assert from_proxy == [200, 200, 200, 429], "the budget of the proxy was untouched"


@pytest.mark.parametrize("path", ["/static/..;/login", "/static/../login", "/static//../login"])
async def test_a_path_that_servers_resolve_differently_is_not_exempt_in_an_application(
    path: str,
) -> None:
    app = RateLimitMiddleware(hello, in_process(), limit="1/hour", exempt_paths=["/static/*"])
    async with living(app):
        seen = await statuses(app, [path, path, "/static/a.css"])

    assert seen == [200, 429, 200]
