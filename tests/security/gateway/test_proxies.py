"""P1: no form of request gets past a proxy after the client has used up its limit.

Real nginx, Caddy, HAProxy and Envoy, configured as in examples/.
"""

from collections.abc import Iterator

import pytest

from tests.examples.proxies import Proxies, serving_proxies
from tests.security.gateway.test_gateway_requests import SPELLINGS

PROXIES = ("nginx", "caddy", "haproxy", "envoy")

CONTROLS = [number for number in range(32) if number not in b"\t\n\r"] + [0x7F, 0x80, 0xFF]
HEADERS = {
    "99 headers": b"".join(b"X-%d: x\r\n" % number for number in range(99)),
    "150 headers": b"".join(b"X-%d: x\r\n" % number for number in range(150)),
    "1000 headers": b"".join(b"X-%d: x\r\n" % number for number in range(1000)),
    "one header of 64 KiB": b"X-A: " + b"x" * 65536 + b"\r\n",
    "64 headers of 1 KiB": b"".join(b"X-%d: " % n + b"x" * 1024 + b"\r\n" for n in range(64)),
    "4 headers of 8150 bytes": b"".join(b"X-%d: " % n + b"x" * 8150 + b"\r\n" for n in range(4)),
    "a header name of 8000 bytes": b"X-" + b"a" * 8000 + b": x\r\n",
    "an empty header name": b": x\r\n",
    "a folded header": b"X-A: x\r\n  y\r\n",
    "a space before the colon": b"X-A : x\r\n",
    "two lengths": b"Content-Length: 1\r\nContent-Length: 2\r\n",
    "chunks and a length": b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
    "an expectation": b"Expect: 100-continue\r\n",
    "an upgrade": b"Connection: Upgrade, X-Forwarded-For\r\nUpgrade: websocket\r\n",
    "another host": b"Host: other\r\n",
}
PATHS = [
    b"/a/../b",
    b"//",
    b"//page",
    b"/%2e%2e",
    b"/%2e%2e/page",
    b"/page;x",
    b"/;x/page",
    b"/a%2F..%2Fpage",
    b"/PAGE",
    b"/page.",
    b"/p%61ge",
    b"/page%00",
    b"/page%ff",
    b"/page%0d%0aX-A:%20x",
    b"/page\xff",
    b"/page\x01",
    b"/page\x7f",
    b"/page#x",
    b"/page?" + b"x" * 8000,
    *[b"/" + b"x" * length for length in range(15000, 15400, 40)],
    b"/" + b"x" * 65536,
    b"http://other/page",
    b"*",
]
ENVOY_ROUTES = [
    b"/trial/../page",
    b"/trial/%2e%2e/page",
    b"/trial/..%2fpage",
    b"/trial%2f..%2fpage",
    b"/trial//../../page",
    b"/gold/../page",
    b"/trial/..;/page",
    b"/trial/.;/../page",
]
"""Paths that begin in a route with another rule, and resolve to the limited page."""


@pytest.fixture(scope="module")
def proxies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxies]:
    with serving_proxies(tmp_path_factory.mktemp("proxies")) as started:
        yield started


def request(target: bytes = b"/page", header: bytes = b"", method: bytes = b"GET") -> bytes:
    head = method + b" " + target + b" HTTP/1.1\r\nHost: x\r\nX-Client: me\r\n"
    return head + header + b"Connection: close\r\n\r\n"


def requests_that_bypass(proxies: Proxies, proxy: str, requests: dict[str, bytes]) -> list[str]:
    """Return the names of the requests that reach the site although the limit is used up."""
    statuses = {}
    for name, each in requests.items():
        proxies.use_up(proxy)
        statuses[name] = proxies.raw_status(proxy, each)
    return [f"{name}: {status}" for name, status in statuses.items() if 200 <= status < 300]


@pytest.mark.parametrize("proxy", PROXIES)
def test_control_bytes_in_a_header_do_not_bypass_the_limit(proxies: Proxies, proxy: str) -> None:
    names = (b"X-A", b"Cookie", b"User-Agent", b"Accept", b"X-Forwarded-For", b"Authorization")
    requests = {
        f"{name.decode()}: {byte:#x}": request(header=name + b": a%cb\r\n" % byte)
        for byte in CONTROLS
        for name in (names if byte in (1, 0x7F, 0xFF) else names[:1])
    }

    assert requests_that_bypass(proxies, proxy, requests) == []


@pytest.mark.parametrize("proxy", PROXIES)
def test_many_large_or_malformed_headers_do_not_bypass_the_limit(
    proxies: Proxies, proxy: str
) -> None:
    requests = {name: request(header=each) for name, each in HEADERS.items()}

    assert requests_that_bypass(proxies, proxy, requests) == []


@pytest.mark.parametrize("proxy", PROXIES)
def test_no_spelling_of_the_path_bypasses_the_limit(proxies: Proxies, proxy: str) -> None:
    requests = {f"{each[:30]!r} of {len(each)} bytes": request(each) for each in PATHS}

    assert requests_that_bypass(proxies, proxy, requests) == []


@pytest.mark.parametrize("proxy", ["nginx", "caddy", "haproxy"])
def test_no_spelling_of_the_path_makes_it_exempt(proxies: Proxies, proxy: str) -> None:
    requests = {each: request(each.encode("ascii")) for each in SPELLINGS}

    assert requests_that_bypass(proxies, proxy, requests) == []
    assert proxies.raw_status(proxy, request(b"/static/site.css")) == 200


def test_no_spelling_of_the_path_selects_another_route_of_envoy(
    proxies: Proxies,
) -> None:
    requests = {each.decode(): request(each) for each in ENVOY_ROUTES}

    assert requests_that_bypass(proxies, "envoy", requests) == []


@pytest.mark.parametrize("proxy", PROXIES)
def test_no_method_that_is_not_exempt_bypasses_the_limit(proxies: Proxies, proxy: str) -> None:
    methods = (b"POST", b"TRACE", b"CONNECT", b"get", b"X-Y", b"M" * 40, b"M" * 15150)
    requests = {each.decode(): request(method=each) for each in methods}

    assert requests_that_bypass(proxies, proxy, requests) == []


@pytest.mark.parametrize("value", [b"\xff", b"a\x80", b"\xc0\xae"])
def test_a_client_header_that_is_not_utf8_is_denied_behind_envoy(
    proxies: Proxies, value: bytes
) -> None:
    statuses = [proxies.raw_status("envoy", request_of_client(b"/page", value)) for _ in range(4)]

    assert statuses == [429] * 4


@pytest.mark.parametrize("length", [15000, 40000, 60000])
def test_a_long_client_header_of_two_descriptors_is_denied_behind_envoy(
    proxies: Proxies, length: int
) -> None:
    long_request = request_of_client(b"/gold", b"x" * length)
    statuses = [proxies.raw_status("envoy", long_request) for _ in range(6)]

    assert statuses[5] in (429, 431)


def request_of_client(target: bytes, name: bytes) -> bytes:
    head = b"GET " + target + b" HTTP/1.1\r\nHost: x\r\nX-Client: " + name
    return head + b"\r\nConnection: close\r\n\r\n"
