"""Processes of `ringfence gateway` and of other programs, over real sockets."""

import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.node.end_to_end.test_serve import ROOT, TIMEOUT, until

__all__ = ["Gateway", "Reply", "fetch", "free_tcp_ports", "gateway", "program", "until"]


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    """Header values by lower-case name."""
    body: bytes


def fetch(
    url: str,
    *,
    method: str | None = None,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: float = TIMEOUT,
) -> Reply:
    """Send one request without a proxy; return error statuses instead of raising them."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(url, body, dict(headers or {}), method=method)
    try:
        with opener.open(request, timeout=timeout) as response:
            return _reply(response.status, response.headers, response.read())
    except urllib.error.HTTPError as error:
        with error:
            return _reply(error.code, error.headers, error.read())


def _reply(status: int, headers: Mapping[str, str], body: bytes) -> Reply:
    return Reply(status, {name.lower(): value for name, value in headers.items()}, body)


def is_up(url: str) -> bool:
    try:
        return fetch(url, timeout=5.0).status == 200
    except OSError:
        return False


def free_tcp_ports(count: int) -> list[int]:
    """Return unused ports.

    All sockets stay open until the last port is found, so that the ports differ.
    """
    import socket

    sockets = []
    try:
        for _ in range(count):
            sock = socket.socket()
            sockets.append(sock)
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in sockets]
    finally:
        for sock in sockets:
            sock.close()


@contextmanager
def program(
    command: Sequence[str],
    log: Path,
    *,
    cwd: Path = ROOT,
    environment: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program until the block ends."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            list(command),
            cwd=cwd,
            env=os.environ | (environment or {}),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@dataclass(frozen=True)
class Gateway:
    process: subprocess.Popen[bytes]
    port: int
    grpc_port: int
    log_path: Path

    @property
    def pids(self) -> list[int]:
        """Process IDs of the main process and its workers."""
        main = self.process.pid
        children = Path(f"/proc/{main}/task/{main}/children").read_text("ascii").split()
        return [main, *map(int, children)]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def grpc(self) -> str:
        return f"127.0.0.1:{self.grpc_port}"

    @property
    def log(self) -> str:
        return self.log_path.read_text("utf-8")

    def wait_ready(self) -> None:
        until(lambda: is_up(f"{self.url}/readyz") or self.process.poll() is not None)
        assert self.process.poll() is None, self.log


@contextmanager
def gateway(directory: Path, cluster: str, *flags: str, ready: bool = True) -> Iterator[Gateway]:
    """Run a gateway to `cluster` on unused ports.

    The deadline is long unless the flags set it, because other programs may use the machine.
    """
    http, grpc = free_tcp_ports(2)
    log = directory / f"gateway-{http}.log"
    command = [
        *(sys.executable, "-m", "node.entry", "gateway", "--cluster", cluster),
        *("--listen", f"127.0.0.1:{http}", "--grpc", f"127.0.0.1:{grpc}", *flags),
    ]
    environment = {"RINGFENCE_GATEWAY_DEADLINE": "2", "RINGFENCE_GATEWAY_HEDGE_AFTER": "1"}
    with program(command, log, environment=environment) as process:
        started = Gateway(process, http, grpc, log)
        if ready:
            started.wait_ready()
        yield started
