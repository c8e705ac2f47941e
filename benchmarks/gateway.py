"""What a call costs one worker of the gateway, in processor time, beside bare servers of its kind.

Processor time of the worker per call, not calls a second: on a machine that is shared with the
load's own sender, and with others, only that says how many calls a core can take. `local` is a
request that meets no rule, so that the answer comes from the gateway itself; `owner` asks a node.
"""

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import grpc
from envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest

from benchmarks.figure import Figure
from node.demo.cluster import running_cluster

__all__ = ["ports", "program", "run", "wait_up"]

_RULES = """\
domain: bench
descriptors:
  - key: user
    rate_limit: {requests_per_unit: 1000000000, unit: hour, algorithm: token_bucket}
"""
_CALLS = 2000
_AT_ONCE = 32
_PATIENCE = 20.0
_METHOD = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
_Sample = Callable[[], Coroutine[Any, Any, None]]


def run(rounds: int) -> Iterator[Figure]:
    """Measure both ports, bare, local and with an owner, in turn."""
    with tempfile.TemporaryDirectory() as directory:
        rules = Path(directory) / "bench.yaml"
        rules.write_text(_RULES, "utf-8")
        bare, gateway = ports(2), ports(2)
        words = ["gateway", "--listen", f"127.0.0.1:{gateway[0]}"]
        words += ["--grpc", f"127.0.0.1:{gateway[1]}", "--log-level", "error"]
        with (
            running_cluster(rules, ["a"]) as nodes,
            program("benchmarks.bare", *map(str, bare)) as bare_main,
            program("node.entry", *words, "--cluster", nodes.url) as main,
        ):
            wait_up(*gateway, *bare)
            bare_worker, worker = _worker_of(bare_main), _worker_of(main)
            samples: dict[str, tuple[int, _Sample]] = {
                "http_bare": (bare_worker, lambda: _over_http(bare[0], "bench")),
                "http_local": (worker, lambda: _over_http(gateway[0], "nobody")),
                "http_owner": (worker, lambda: _over_http(gateway[0], "bench")),
                "rls_bare": (bare_worker, lambda: _over_grpc(bare[1], "bench")),
                "rls_local": (worker, lambda: _over_grpc(gateway[1], "nobody")),
                "rls_owner": (worker, lambda: _over_grpc(gateway[1], "bench")),
            }
            found: dict[str, list[float]] = {name: [] for name in samples}
            for _ in range(rounds):
                for name, (pid, sample) in samples.items():
                    found[name].append(_cost(pid, sample))
    for name, costs in found.items():
        yield _figure(f"gateway.{name}_us", costs, "us")
    for name, costs in found.items():
        yield _figure(f"gateway.{name}_per_core_s", [1e6 / each for each in costs], "1/s")


def _cost(pid: int, sample: _Sample) -> float:
    """Microseconds of a process's time that each call of a sample took."""
    before = _cpu(pid)
    asyncio.run(sample())
    return (_cpu(pid) - before) / _CALLS * 1e6


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _over_http(port: int, domain: str) -> None:
    body = f'{{"domain":"{domain}","descriptors":[{{"user":"x"}}]}}'
    request = (
        "POST /v1/check HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}"
    ).encode()

    async def caller() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(_CALLS // _AT_ONCE):
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head
            size = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
            await reader.readexactly(int(size))
        writer.close()

    await asyncio.gather(*[caller() for _ in range(_AT_ONCE)])


async def _over_grpc(port: int, domain: str) -> None:
    request = RateLimitRequest(domain=domain)
    request.descriptors.add().entries.add(key="user", value="x")
    message = request.SerializeToString()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        ask: Any = channel.unary_unary(_METHOD)

        async def caller() -> None:
            for _ in range(_CALLS // _AT_ONCE):
                await ask(message, timeout=_PATIENCE)

        await asyncio.gather(*[caller() for _ in range(_AT_ONCE)])


@contextmanager
def program(module: str, *words: str) -> Iterator[int]:
    """Run a server of granian's; gives the process id of its main process."""
    with subprocess.Popen([sys.executable, "-m", module, *words]) as process:
        try:
            yield process.pid
        finally:
            process.terminate()


def _worker_of(pid: int) -> int:
    """The one worker of a server that is up."""
    [worker] = Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()
    return int(worker)


def wait_up(*listening: int) -> None:
    """Wait until somebody listens on every port."""
    give_up = time.monotonic() + _PATIENCE
    for port in listening:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1.0).close()
                break
            except OSError:
                assert time.monotonic() < give_up, f"nobody listens on port {port}"
                time.sleep(0.05)  # A process that starts tells nobody.


def ports(count: int) -> list[int]:
    """Ports that nobody has; held until all are found, so that they differ."""
    with ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in held:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in held]


def _figure(name: str, values: list[float], unit: str) -> Figure:
    return Figure(name, median(values), unit, min(values), max(values), len(values))
