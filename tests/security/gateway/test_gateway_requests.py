"""P17: what a client writes makes no path exempt and no client another one.

A real gateway before a real node; the requests are those that a proxy makes of a client's.
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
"""Some server reads each of them as a page below /login."""


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    directory = tmp_path_factory.mktemp("gateway")
    config = directory / "gateway.toml"
    config.write_text('exempt_paths = ["/static"]\n', "utf-8")
    with (
        nodes(directory, "a", amount=3) as running,
        gateway(directory, running["a"].url, "--config", str(config)) as started,
    ):
        yield started


def status(asked: Gateway, client: str | bytes | None, path: str = "/page") -> int:
    headers: dict[str, str | bytes] = {"X-Forwarded-Uri": path, "X-Forwarded-Method": "GET"}
    if client is not None:
        headers["X-Forwarded-For"] = client
    return httpx.get(f"{asked.url}/v1/auth", headers=headers, timeout=60).status_code


def test_no_path_that_servers_read_differently_is_exempt(asked: Gateway) -> None:
    client = "203.0.113.1"
    for _ in range(3):
        assert status(asked, client) == 200

    passed = [path for path in SPELLINGS if status(asked, client, path) != 429]

    assert passed == []
    assert status(asked, client, "/static/site.css") == 200


def test_a_client_that_cannot_be_read_is_not_counted_as_the_proxy(asked: Gateway) -> None:
    rubbish = [status(asked, client) for client in ("rubbish", "a.b.c.d", "unknown", "")]
    unreadable = [status(asked, b"\xff"), status(asked, b"\xff, 203.0.113.2")]
    own = [status(asked, None) for _ in range(4)]

    assert rubbish == [200, 200, 200, 429], "they share one budget"
    assert unreadable == [429, 429]
    assert own == [200, 200, 200, 429], "the proxy's own is whole"


@pytest.mark.parametrize("path", ["/static/..;/login", "/static/../login", "/static//../login"])
async def test_no_path_that_servers_read_differently_is_exempt_in_an_application(path: str) -> None:
    app = RateLimitMiddleware(hello, in_process(), limit="1/hour", exempt_paths=["/static/*"])
    async with living(app):
        seen = await statuses(app, [path, path, "/static/a.css"])

    assert seen == [200, 429, 200]
