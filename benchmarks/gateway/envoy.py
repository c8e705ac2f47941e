"""Latency of requests through real Envoy, with and without limits, and while a host is killed.

It runs `examples/envoy` with other ports. First at 1000 requests a second with one gateway and one
node: `bare` requests go to the upstream without the filter, in the same Envoy. Then at 300 requests
a second with three hosts, each with a node and a gateway. One host is killed; `outage` has the
requests from then on. `passed_uncounted` is the share of requests that Envoy let through after the
filter's time-out.
"""

import asyncio
import os
import signal
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import Popen
from time import monotonic, sleep
from typing import NamedTuple

from benchmarks.gateway.gateway import children_of, ports, program, wait_up
from benchmarks.reporting.figure import Figure, figure
from node.demo.cluster import DemoCluster, running_cluster

__all__ = ["run"]

_EXAMPLE = Path(__file__).parent.parent / "examples" / "envoy" / "envoy.yaml"
_RULES = """\
domain: edge
descriptors:
  - key: client
    rate_limit: {requests_per_unit: 1000000000, unit: hour, algorithm: token_bucket}
"""
_RATE, _SECONDS = 1000.0, 2.0
_OUTAGE_RATE, _OUTAGE_SECONDS, _DIES_AFTER = 300.0, 6.0, 1.0
_CONNECTIONS = 20
_SHIPPED = ("7181", "7182", "7183")
"""The gateways' ports in the example."""
_TIMEOUT = 30.0


class _Asked(NamedTuple):
    at: float
    """Seconds since the load began."""
    took: float
    """Seconds."""
    is_counted: bool


class _Edge(NamedTuple):
    """Ports of a running Envoy and its upstream server."""

    port: int
    upstream: int
    cluster: DemoCluster
    gateways: dict[str, int]
    """Process ids of the gateways' main processes."""


def run(rounds: int) -> Iterator[Figure]:
    """Measure the upstream server and Envoy alternately, then Envoy while a host is killed."""
    with _envoy(["a"]) as edge:
        asyncio.run(_load(edge.port, _RATE, _SECONDS))
        turns = [edge.upstream, edge.port] * rounds
        loads = [asyncio.run(_load(port, _RATE, _SECONDS)) for port in turns]
    bare, limited = loads[::2], loads[1::2]
    for share, called in ((0.5, "p50"), (0.99, "p99")):
        for name, found in (("bare", bare), ("edge", limited)):
            yield _times(f"envoy.{name}_{called}_us", found, share)
    yield _uncounted("envoy.passed_uncounted", limited)
    outages = [_outage() for _ in range(rounds)]
    yield _times("envoy.outage_p50_us", outages, 0.5)
    yield _times("envoy.outage_p99_us", outages, 0.99)
    yield _times("envoy.outage_most_us", outages, 1.0)
    yield _uncounted("envoy.outage_passed_uncounted", outages)


def _outage() -> list[_Asked]:
    """Send requests and kill a host meanwhile; return the requests after that moment."""
    with _envoy(["a", "b", "c"]) as edge:

        def kill() -> None:
            main = edge.gateways["b"]
            for pid in (*children_of(main), main):
                os.kill(pid, signal.SIGKILL)
            edge.cluster.kill("b")

        asyncio.run(_load(edge.port, _OUTAGE_RATE, 1.0))
        load = _load(edge.port, _OUTAGE_RATE, _OUTAGE_SECONDS, (_DIES_AFTER, kill))
        return [each for each in asyncio.run(load) if each.at >= _DIES_AFTER]


@contextmanager
def _envoy(names: Sequence[str]) -> Iterator[_Edge]:
    """Run Envoy with several hosts; the block starts once its health checks have found them."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        rules = directory / "rules.yaml"
        rules.write_text(_RULES, "utf-8")
        cluster = stack.enter_context(running_cluster(rules, names))
        gateways: dict[str, int] = {}
        grpc = ports(len(names))
        for name, at in zip(names, grpc, strict=True):
            [http] = ports(1)
            words = ["--listen", f"127.0.0.1:{http}", "--grpc", f"127.0.0.1:{at}"]
            words += ["--log-level", "error", "--cluster", cluster.url]
            gateways[name] = stack.enter_context(program("node.entry", "gateway", *words))
        wait_up(*grpc)
        edge, upstream, admin = ports(3)
        shipped = {"10000": edge, "10001": upstream, "9901": admin}
        # With fewer gateways than in the example, the last one takes the other places.
        shipped |= {port: grpc[min(at, len(grpc) - 1)] for at, port in enumerate(_SHIPPED)}
        config = directory / "envoy.yaml"
        config.write_text(_configured(shipped), "utf-8")
        binary = str(Path(sys.executable).parent / "envoy")
        flags = ["--concurrency", "1", "--disable-hot-restart", "-l", "error"]
        envoy = stack.enter_context(Popen([binary, "-c", str(config), *flags]))
        stack.callback(envoy.terminate)
        wait_up(edge, admin)
        _wait_healthy(admin, len(names))
        yield _Edge(edge, upstream, cluster, gateways)


def _configured(ports_by_shipped: dict[str, int]) -> str:
    text = _EXAMPLE.read_text("utf-8")
    for shipped, free in ports_by_shipped.items():
        assert f"port_value: {shipped}}}" in text
        text = text.replace(f"port_value: {shipped}}}", f"port_value: {free}}}")
    return text


def _wait_healthy(admin: int, gateways: int) -> None:
    """Wait until Envoy's health checks have found the gateways and the upstream."""
    give_up = monotonic() + _TIMEOUT
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while True:
        with opener.open(f"http://127.0.0.1:{admin}/clusters", timeout=_TIMEOUT) as answer:
            if answer.read().count(b"health_flags::healthy") > gateways:
                return
        assert monotonic() < give_up, "Envoy finds no healthy gateway"
        sleep(0.1)  # Envoy sends no event for this.


async def _load(
    port: int,
    rate: float,
    seconds: float,
    meanwhile: tuple[float, Callable[[], None]] | None = None,
) -> list[_Asked]:
    """Send requests at an even rate; run `meanwhile` after some seconds."""
    asked: list[_Asked] = []
    count = round(rate * seconds / _CONNECTIONS)
    loop = asyncio.get_running_loop()
    started_at = loop.time()

    async def caller(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        request = f"GET / HTTP/1.1\r\nHost: x\r\nx-client: {number}\r\n\r\n".encode()
        for turn in range(count):
            due = started_at + (turn * _CONNECTIONS + number) / rate
            await asyncio.sleep(max(0.0, due - loop.time()))
            sent = loop.time()
            writer.write(request)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            assert head.startswith(b"http/1.1 200"), head
            size = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
            await reader.readexactly(size)
            took = loop.time() - sent
            asked.append(_Asked(sent - started_at, took, b"x-ratelimit-limit" in head))
        writer.close()

    async def other() -> None:
        if meanwhile is not None:
            after, what = meanwhile
            await asyncio.sleep(after)
            await asyncio.to_thread(what)

    await asyncio.gather(other(), *[caller(number) for number in range(_CONNECTIONS)])
    return asked


def _times(name: str, loads: Sequence[list[_Asked]], share: float) -> Figure:
    """Return a quantile of the request times of each load, in microseconds."""
    ordered = [sorted(each.took for each in load) for load in loads]
    return figure(name, "us", [took[int(share * (len(took) - 1))] * 1e6 for took in ordered])


def _uncounted(name: str, loads: Sequence[list[_Asked]]) -> Figure:
    shares = [sum(not each.is_counted for each in load) / len(load) for load in loads]
    return figure(name, "ratio", shares)
