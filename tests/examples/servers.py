"""Real web servers of the examples, which run as long as a `with` block."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

import httpx

EXAMPLES = Path(__file__).parents[2] / "examples"
_STARTUP = 60.0
"""Seconds within which a server must respond, even on a busy machine."""


@dataclass(frozen=True)
class Server:
    """Command that starts a web server. PORT stands for the port on which the server listens."""

    folder: str
    command: Sequence[str]


UVICORN = Server("fastapi", ["uvicorn", "--port", "PORT", "app:app"])
HYPERCORN = Server(
    "fastapi", ["hypercorn", "--worker-class", "trio", "--bind", "127.0.0.1:PORT", "app:app"]
)
_GUNICORN = ["gunicorn", "--workers", "2", "--threads", "4", "--bind", "127.0.0.1:PORT"]
FLASK = Server("flask", [*_GUNICORN, "--preload", "app:app"])
DJANGO_WSGI = Server("django", [*_GUNICORN, "shop.wsgi"])
DJANGO_ASGI = Server("django", ["uvicorn", "--port", "PORT", "shop.asgi:application"])


@contextmanager
def serving(cluster: str, home: Path, *servers: Server) -> Iterator[list[str]]:
    """Start the servers; yield their addresses when all of them respond."""
    environment = {name: text for name, text in os.environ.items() if not name.startswith("RING")}
    environment |= {"RINGFENCE_URL": cluster, "PYTHONPATH": str(EXAMPLES.parent)}
    with ExitStack() as stack:
        started = [
            stack.enter_context(_running(server, home / f"{index}.log", environment))
            for index, server in enumerate(servers)
        ]
        for address, process, log in started:
            _wait_until_up(address, process, log)
        yield [address for address, _, _ in started]


@contextmanager
def _running(
    server: Server, log: Path, environment: Mapping[str, str]
) -> Iterator[tuple[str, "subprocess.Popen[bytes]", Path]]:
    port = _free_port()
    command = [part.replace("PORT", str(port)) for part in server.command]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=EXAMPLES / server.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        yield f"http://127.0.0.1:{port}", process, log
    finally:
        process.terminate()
        try:
            process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_up(address: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = monotonic() + _STARTUP
    while True:
        try:
            if httpx.get(f"{address}/healthz", timeout=10).status_code == 200:
                return
        except httpx.TransportError:
            sleep(0.05)  # The server does not listen yet.
        assert process.poll() is None, log.read_text("utf-8")
        assert monotonic() < deadline, f"{address} did not answer\n{log.read_text('utf-8')}"


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
