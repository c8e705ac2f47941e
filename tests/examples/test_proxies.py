"""examples/nginx, caddy and haproxy: real proxies before gateways of one cluster."""

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.examples.cluster import EXAMPLES
from tests.gateway.processes import Gateway, Reply, fetch, free_tcp_ports, gateway, program, until
from tests.node.test_serve import PATIENCE, nodes

SYSTEM = {"PATH": os.environ["PATH"] + ":/usr/sbin:/sbin"}
"""Where Debian keeps servers."""


@dataclass(frozen=True)
class Proxies:
    """The same site behind three proxies, each with a gateway."""

    urls: dict[str, str]
    gateways: list[Gateway]

    def get(self, proxy: str, **headers: str) -> Reply:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        return fetch(self.urls[proxy] + "/page?b=1", headers=sent)

    def forget(self) -> None:
        """Give the client its whole budget back."""
        body = b'{"domain":"api","descriptors":[{"client":"127.0.0.1"}]}'
        answer = fetch(f"{self.gateways[0].url}/v1/reset", body=body, headers=JSON)
        assert answer.status == 200


JSON = {"Content-Type": "application/json"}


def configured(folder: str, directory: Path, ports: dict[str, int]) -> Path:
    """Copy an example, with ports that are free in place of its own."""
    copy = directory / folder
    copy.mkdir()
    for file in (EXAMPLES / folder).iterdir():
        text = file.read_text("utf-8")
        for shipped, free in ports.items():
            for place in ("127.0.0.1:", "http://:"):
                text = text.replace(f"{place}{shipped}", f"{place}{free}")
        # The machine that runs this may be busy.
        text = text.replace("250ms", "5s").replace("timeout = 250", "timeout = 5000")
        text = text.replace("timeout 1s", "timeout 5s")
        (copy / file.name).write_text(text, "utf-8")
    return copy


@pytest.fixture(scope="module")
def proxies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxies]:
    directory = tmp_path_factory.mktemp("proxies")
    with nodes(directory, "a", amount=3) as running, ExitStack() as stack:
        gateways = [
            stack.enter_context(gateway(directory, running["a"].url, ready=False)) for _ in range(2)
        ]
        edge, upstream, caddy, haproxy, asking = free_tcp_ports(5)
        one, other = [each.port for each in gateways]

        folder = configured("nginx", directory, {"7180": one, "8080": edge, "8081": upstream})
        words = ["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf")]
        stack.enter_context(program(words, directory / "nginx.log", environment=SYSTEM))

        folder = configured("caddy", directory, {"7180": other, "8090": caddy})
        words = ["caddy", "run", "--config", "Caddyfile", "--adapter", "caddyfile"]
        home = {"HOME": str(directory), "XDG_DATA_HOME": str(directory)}
        log = directory / "caddy.log"
        stack.enter_context(program(words, log, cwd=folder, environment=SYSTEM | home))

        ports = {"7180": other, "8070": haproxy, "8071": asking}
        folder = configured("haproxy", directory, ports)
        words = ["haproxy", "-db", "-f", "haproxy.cfg"]
        log = directory / "haproxy.log"
        stack.enter_context(program(words, log, cwd=folder, environment=SYSTEM))

        for each in gateways:
            each.wait_ready()
        urls = {
            "nginx": f"http://127.0.0.1:{edge}",
            "caddy": f"http://127.0.0.1:{caddy}",
            "haproxy": f"http://127.0.0.1:{haproxy}",
        }
        started = Proxies(urls, gateways)
        for name in urls:
            until(lambda name=name: answers(started, name))
        yield started


def answers(proxies: Proxies, name: str) -> bool:
    """Whether a proxy is up and asks its gateway."""
    try:
        return "x-ratelimit-remaining" in proxies.get(name).headers
    except OSError:
        return False


def test_one_budget_holds_over_all_of_them(proxies: Proxies) -> None:
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
    assert raw_status(proxies, proxy, b"GET /page?b=\xff HTTP/1.1\r\nHost: x\r\n\r\n") == status


def test_headers_as_large_as_nginx_takes_are_counted_all_the_same(proxies: Proxies) -> None:
    proxies.forget()
    small = b"GET /page HTTP/1.1\r\nHost: x\r\nY: " + b"y" * 900 + b"\r\n"
    large = b"".join(b"X-%d: " % number + b"x" * 8150 + b"\r\n" for number in range(4))

    statuses = [raw_status(proxies, "nginx", small + large + b"\r\n") for _ in range(4)]

    assert statuses == [200, 200, 200, 429]


def raw_status(proxies: Proxies, proxy: str, request: bytes) -> int:
    """Send bytes as they are; the status of the answer."""
    host, _, port = proxies.urls[proxy].removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as connection:
        connection.sendall(request)
        line = connection.makefile("rb").readline()
    return int(line.split()[1])


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
    with hanging(proxies.gateways):
        reply = proxies.get(proxy)

    assert reply.status == status


@contextmanager
def hanging(gateways: list[Gateway]) -> Iterator[None]:
    """Stop gateways in their tracks, with their workers; their ports still take connections."""
    found = []
    for each in gateways:
        main = each.process.pid
        children = Path(f"/proc/{main}/task/{main}/children").read_text("ascii").split()
        found += [main, *map(int, children)]
    for pid in found:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in found:
            os.kill(pid, signal.SIGCONT)
