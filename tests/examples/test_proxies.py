"""examples/nginx, caddy and haproxy: real proxies before gateways of one cluster."""

from collections.abc import Iterator

import pytest

from tests.examples.proxies import Proxies, hanging, serving_proxies


@pytest.fixture(scope="module")
def proxies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxies]:
    with serving_proxies(tmp_path_factory.mktemp("proxies")) as started:
        yield started


def test_one_budget_holds_over_all_of_them(proxies: Proxies) -> None:
    for name in ("nginx", "caddy", "haproxy"):
        proxies.url(name)
    proxies.forget()

    replies = [proxies.get(name) for name in ("nginx", "caddy", "haproxy")]
    refused = [proxies.get(name) for name in ("nginx", "caddy", "haproxy")]

    assert [each.status for each in replies] == [200] * 3
    assert [each.headers["x-ratelimit-remaining"] for each in replies] == ["2", "1", "0"]
    assert [each.status for each in refused] == [429] * 3
    assert all(int(each.headers["retry-after"]) >= 1 for each in refused)
    assert all('"client";r=0' in each.headers["ratelimit"] for each in refused)
    assert not any("retry-after" in each.headers for each in replies)


@pytest.mark.parametrize("proxy", ["nginx", "caddy", "haproxy"])
def test_the_proxy_asks_whatever_host_the_client_names(proxies: Proxies, proxy: str) -> None:
    proxies.forget()

    replies = [proxies.get(proxy, host=name) for name in ("localhost", "example.org")]

    assert [each.status for each in replies] == [200, 200]
    assert [each.headers["x-ratelimit-remaining"] for each in replies] == ["2", "1"]


@pytest.mark.parametrize(("proxy", "status"), [("nginx", 429), ("caddy", 400), ("haproxy", 400)])
def test_a_path_in_bytes_that_are_not_ascii_is_not_let_pass(
    proxies: Proxies, proxy: str, status: int
) -> None:
    assert proxies.raw_status(proxy, b"GET /page?b=\xff HTTP/1.1\r\nHost: x\r\n\r\n") == status


def test_headers_as_large_as_nginx_takes_are_counted_all_the_same(proxies: Proxies) -> None:
    proxies.forget()
    small = b"GET /page HTTP/1.1\r\nHost: x\r\nY: " + b"y" * 900 + b"\r\n"
    large = b"".join(b"X-%d: " % number + b"x" * 8150 + b"\r\n" for number in range(4))

    statuses = [proxies.raw_status("nginx", small + large + b"\r\n") for _ in range(4)]

    assert statuses == [200, 200, 200, 429]


@pytest.mark.parametrize("proxy", ["nginx", "caddy", "haproxy"])
def test_a_client_that_calls_itself_otherwise_is_counted_all_the_same(
    proxies: Proxies, proxy: str
) -> None:
    proxies.forget()

    statuses = [
        proxies.get(
            proxy,
            x_forwarded_for=f"198.51.100.{number}",
            x_real_ip=f"198.51.100.{number}",
            forwarded=f"for=198.51.100.{number}",
            x_forwarded_method="OPTIONS",
            x_forwarded_uri="/healthz",
        ).status
        for number in range(4)
    ]

    assert statuses == [200, 200, 200, 429]


@pytest.mark.parametrize(("proxy", "status"), [("nginx", 200), ("caddy", 504), ("haproxy", 200)])
def test_a_gateway_that_hangs_holds_nobody_for_long(
    proxies: Proxies, proxy: str, status: int
) -> None:
    proxies.url(proxy)
    with hanging(proxies.gateways):
        reply = proxies.get(proxy)

    assert reply.status == status
