"""examples/nginx, caddy and haproxy: real proxies before gateways of one cluster."""

from collections.abc import Iterator

import pytest

from tests.examples.proxies import Proxies, serving_proxies, suspended


@pytest.fixture(scope="module")
def proxies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxies]:
    with serving_proxies(tmp_path_factory.mktemp("proxies")) as started:
        yield started


def test_all_proxies_share_one_budget(proxies: Proxies) -> None:
    for name in ("nginx", "caddy", "haproxy"):
        proxies.url(name)
    proxies.reset_budget()

    replies = [proxies.get(name) for name in ("nginx", "caddy", "haproxy")]
    denied = [proxies.get(name) for name in ("nginx", "caddy", "haproxy")]

    assert [each.status for each in replies] == [200] * 3
    assert [each.headers["x-ratelimit-remaining"] for each in replies] == ["2", "1", "0"]
    assert [each.status for each in denied] == [429] * 3
    assert all(int(each.headers["retry-after"]) >= 1 for each in denied)
    assert all('"client";r=0' in each.headers["ratelimit"] for each in denied)
    for each in replies + denied:
        assert each.headers["ratelimit"].startswith('"client";r=')
        assert each.headers["ratelimit-policy"].startswith('"client";q=3;w=')
        assert each.headers["x-ratelimit-limit"] == "3"
        assert int(each.headers["x-ratelimit-reset"]) >= 1
    assert not any("retry-after" in each.headers for each in replies)


@pytest.mark.parametrize("proxy", ["nginx", "caddy", "haproxy"])
def test_the_proxy_sends_a_check_for_every_host_header(proxies: Proxies, proxy: str) -> None:
    proxies.reset_budget()

    replies = [proxies.get(proxy, host=name) for name in ("localhost", "example.org")]

    assert [each.status for each in replies] == [200, 200]
    assert [each.headers["x-ratelimit-remaining"] for each in replies] == ["2", "1"]


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS"])
@pytest.mark.parametrize("proxy", ["nginx", "caddy", "haproxy"])
def test_a_request_that_is_not_counted_gets_no_limit_header(
    proxies: Proxies, proxy: str, method: str
) -> None:
    reply = proxies.exempt(proxy, method)

    assert reply.status == 200
    assert not any("ratelimit" in name for name in reply.headers)


@pytest.mark.parametrize(("proxy", "status"), [("nginx", 429), ("caddy", 400), ("haproxy", 400)])
def test_a_path_with_bytes_outside_ascii_is_rejected(
    proxies: Proxies, proxy: str, status: int
) -> None:
    assert proxies.raw_status(proxy, b"GET /page?b=\xff HTTP/1.1\r\nHost: x\r\n\r\n") == status


def test_requests_with_the_largest_headers_that_nginx_accepts_are_counted(proxies: Proxies) -> None:
    proxies.reset_budget()
    small = b"GET /page HTTP/1.1\r\nHost: x\r\nY: " + b"y" * 900 + b"\r\n"
    large = b"".join(b"X-%d: " % number + b"x" * 8150 + b"\r\n" for number in range(4))

    statuses = [proxies.raw_status("nginx", small + large + b"\r\n") for _ in range(4)]

    assert statuses == [200, 200, 200, 429]


@pytest.mark.parametrize("proxy", ["nginx", "caddy", "haproxy"])
def test_forged_forwarding_headers_do_not_change_the_counted_client(
    proxies: Proxies, proxy: str
) -> None:
    proxies.reset_budget()

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
def test_a_suspended_gateway_does_not_block_requests(
    proxies: Proxies, proxy: str, status: int
) -> None:
    proxies.url(proxy)
    with suspended(proxies.gateways):
        reply = proxies.get(proxy)

    assert reply.status == status
