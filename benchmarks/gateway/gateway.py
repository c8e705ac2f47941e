"""Processor time of a call in one gateway worker, beside servers with a constant answer on the same
libraries.

The figure is processor time per call instead of calls per second, because the load generator shares
the machine. `local` requests match no rule, so the gateway answers without a node. `owner` requests
reach a node each time, and `owner_node` is the node's share of them.
"""

import asyncio
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

from benchmarks.reporting.figure import Figure
from node.demo.cluster import running_cluster

__all__ = ["children_of", "ports", "program", "run", "wait_up"]

_RULES = """\
domain: bench
descriptors:
  - key: user
    rate_limit: {requests_per_unit: 1000000000, unit: hour, algorithm: token_bucket, leases: false}
"""
_CALLS = 4000
_AT_ONCE = 32
_TIMEOUT = 20.0
_METHOD = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
_Sample = Callable[[], Coroutine[Any, Any, None]]


def run(rounds: int) -> Iterator[Figure]:
    """Measure the HTTP and the gRPC port alternately: constant answers, local decisions, and
    decisions of an owner."""
    with tempfile.TemporaryDirectory() as directory:
        rules = Path(directory) / "bench.yaml"
        rules.write_text(_RULES, "utf-8")
        bare, gateway = ports(2), ports(2)
        words = ["gateway", "--listen", f"127.0.0.1:{gateway[0]}"]
        words += ["--grpc", f"127.0.0.1:{gateway[1]}", "--log-level", "error"]
        with (
            running_cluster(rules, ["a"]) as nodes,
            program("benchmarks.gateway.baseline_servers", *map(str, bare)) as bare_main,
            program("node.entry", *words, "--cluster", nodes.url) as main,
        ):
            wait_up(*gateway, *bare)
            [bare_worker], [worker] = children_of(bare_main), children_of(main)
            node = nodes.processes["a"].pid
            samples: list[tuple[_Sample, dict[str, int]]] = [
                (lambda: _over_http(bare[0], "bench"), {"http_bare": bare_worker}),
                (lambda: _over_http(gateway[0], "nobody"), {"http_local": worker}),
                (
                    lambda: _over_http(gateway[0], "bench"),
                    {"http_owner": worker, "http_owner_node": node},
                ),
                (lambda: _over_grpc(bare[1], "bench"), {"rls_bare": bare_worker}),
                (lambda: _over_grpc(gateway[1], "nobody"), {"rls_local": worker}),
                (
                    lambda: _over_grpc(gateway[1], "bench"),
                    {"rls_owner": worker, "rls_owner_node": node},
                ),
            ]
            found: dict[str, list[float]] = {name: [] for _, who in samples for name in who}
            for _ in range(rounds):
                for sample, who in samples:
                    for name, cost in _costs(sample, who).items():
                        found[name].append(cost)
    for name, costs in found.items():
        yield _figure(f"gateway.{name}_us", costs, "us")
    for name, costs in found.items():
        yield _figure(f"gateway.{name}_per_core_s", [1e6 / each for each in costs], "1/s")


def _costs(sample: _Sample, who: dict[str, int]) -> dict[str, float]:
    """Return the microseconds of processor time per call of each process."""
    before = {name: _cpu_ns(pid) for name, pid in who.items()}
    asyncio.run(sample())
    return {name: (_cpu_ns(pid) - before[name]) / _CALLS / 1e3 for name, pid in who.items()}


def _cpu_ns(pid: int) -> int:
    """Return the processor time of all threads in ns; `stat` counts in hundredths of a second."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text("ascii").split()[0]) for task in tasks)


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
                await ask(message, timeout=_TIMEOUT)

        await asyncio.gather(*[caller() for _ in range(_AT_ONCE)])


@contextmanager
def program(module: str, *words: str) -> Iterator[int]:
    """Run a Granian server; yield the process id of its main process."""
    with subprocess.Popen([sys.executable, "-m", module, *words]) as process:
        try:
            yield process.pid
        finally:
            process.terminate()


def children_of(pid: int) -> list[int]:
    """Return the worker processes of a running server."""
    return [*map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split())]


def wait_up(*listening: int) -> None:
    """Wait until every port accepts connections."""
    give_up = time.monotonic() + _TIMEOUT
    for port in listening:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1.0).close()
                break
            except OSError:
                assert time.monotonic() < give_up, f"nobody listens on port {port}"
                time.sleep(0.05)  # Another program's port: there is no event to wait for.


def ports(count: int) -> list[int]:
    """Return free ports; each is reserved until the last one is found, so that they differ."""
    with ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in held:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in held]


def _figure(name: str, values: list[float], unit: str) -> Figure:
    return Figure(name, median(values), unit, min(values), max(values), len(values))
