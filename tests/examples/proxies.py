"""The same site behind nginx, Caddy and HAProxy as examples/ configure them, on free ports."""

import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.examples.cluster import EXAMPLES
from tests.gateway.processes import Gateway, Reply, fetch, free_tcp_ports, gateway, program, until
from tests.node.test_serve import PATIENCE, nodes
from tests.programs import SYSTEM_PATH, require

__all__ = ["Proxies", "hanging", "raw_status", "serving_proxies"]

_JSON = {"Content-Type": "application/json"}


@dataclass
class Proxies:
    """Proxies of one site, each started when a test first needs it."""

    gateways: list[Gateway]
    """The first one serves nginx, the second one Caddy and HAProxy."""
    directory: Path
    stack: ExitStack
    _urls: dict[str, str] = field(default_factory=dict)

    def url(self, proxy: str) -> str:
        """Address of a running proxy; skips the test where the proxy is not installed."""
        if proxy not in self._urls:
            binary = require(proxy)
            self._urls[proxy] = _START[proxy](self, binary)
            until(lambda: self._answers(proxy))
        return self._urls[proxy]

    def get(self, proxy: str, **headers: str) -> Reply:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        return fetch(self.url(proxy) + "/page?b=1", headers=sent)

    def raw_status(self, proxy: str, request: bytes) -> int:
        return raw_status(self.url(proxy), request)

    def forget(self) -> None:
        """Give the client its whole budget back."""
        body = b'{"domain":"api","descriptors":[{"client":"127.0.0.1"}]}'
        answer = fetch(f"{self.gateways[0].url}/v1/reset", body=body, headers=_JSON)
        assert answer.status == 200

    def _answers(self, proxy: str) -> bool:
        """Whether a proxy is up and asks its gateway."""
        try:
            return "x-ratelimit-remaining" in self.get(proxy).headers
        except OSError:
            return False

    def _run(self, name: str, *words: str, cwd: Path) -> None:
        home = {"HOME": str(self.directory), "XDG_DATA_HOME": str(self.directory)}
        environment = {"PATH": SYSTEM_PATH} | home
        log = self.directory / f"{name}.log"
        self.stack.enter_context(program(words, log, cwd=cwd, environment=environment))

    def _start_nginx(self, binary: str) -> str:
        edge, upstream = free_tcp_ports(2)
        ports = {"7180": self.gateways[0].port, "8080": edge, "8081": upstream}
        folder = _configured("nginx", self.directory, ports)
        self._run("nginx", binary, "-p", str(folder), "-c", str(folder / "nginx.conf"), cwd=folder)
        return f"http://127.0.0.1:{edge}"

    def _start_caddy(self, binary: str) -> str:
        [edge] = free_tcp_ports(1)
        folder = _configured("caddy", self.directory, {"7180": self.gateways[1].port, "8090": edge})
        words = ("run", "--config", "Caddyfile", "--adapter", "caddyfile")
        self._run("caddy", binary, *words, cwd=folder)
        return f"http://127.0.0.1:{edge}"

    def _start_haproxy(self, binary: str) -> str:
        edge, asking = free_tcp_ports(2)
        ports = {"7180": self.gateways[1].port, "8070": edge, "8071": asking}
        folder = _configured("haproxy", self.directory, ports)
        self._run("haproxy", binary, "-db", "-f", "haproxy.cfg", cwd=folder)
        return f"http://127.0.0.1:{edge}"


_START: dict[str, Callable[[Proxies, str], str]] = {
    "nginx": Proxies._start_nginx,
    "caddy": Proxies._start_caddy,
    "haproxy": Proxies._start_haproxy,
}


@contextmanager
def serving_proxies(directory: Path) -> Iterator[Proxies]:
    """One node that admits three requests per client, and two gateways to it."""
    with nodes(directory, "a", amount=3) as running, ExitStack() as stack:
        gateways = [
            stack.enter_context(gateway(directory, running["a"].url, ready=False)) for _ in range(2)
        ]
        for each in gateways:
            each.wait_ready()
        yield Proxies(gateways, directory, stack)


def _configured(folder: str, directory: Path, ports: dict[str, int]) -> Path:
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


def raw_status(url: str, request: bytes) -> int:
    """Send bytes as they are; return the status of the answer."""
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as connection:
        connection.sendall(request)
        line = connection.makefile("rb").readline()
    return int(line.split()[1])


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
