"""Decisions, latency and hedging of a gateway under load.

The benchmark runs three node processes with replication and one gateway worker. In a separate
process, 50, 200 or 800 concurrent callers call Envoy's rate limit service, for 10,000 clients.
`policy_share` is the share of calls decided by the rule's failure policy because no node answered.
`shed_share` is the share that was shed by a busy node or gateway. `hedged_share` is the share of
checks sent to two nodes. `late_share` is the share of calls that the gateway answered more than a
tenth after its deadline, by its own clock. Call times include the callers' own process and sockets,
which is most of the time with 800 callers on two cores.
"""

import asyncio
import tempfile
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import grpc
from envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.gateway.gateway import ports, program, wait_up
from benchmarks.reporting.figure import Figure, figure
from node.demo.cluster import running_cluster
from ringfence.wire import Source

__all__ = ["METHOD", "call", "counted", "message", "run"]

_RULES = """\
domain: bench
descriptors:
  - key: client
    rate_limit: {requests_per_unit: 1000000000, unit: hour, algorithm: token_bucket, leases: false}
"""
_LEVELS = (50, 200, 800)
_CLIENTS = 10_000
_SECONDS = 4.0
_WARM = 1.0
_CHANNELS = 8
_LONGEST = 20.0
_PAUSE = 0.05
"""Seconds after a failed call before the caller's next one."""
_DECISIONS = "ringfence_gateway_decisions_total"
_ASKED = "ringfence_gateway_asked_checks_total"
_HEDGED = "ringfence_gateway_hedged_checks_total"
_LATE = "ringfence_gateway_late_total"
METHOD = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"


class _Load(NamedTuple):
    """Call times, failures and decisions of the gateway under one number of callers."""

    took: list[float]
    """Call times in seconds, sorted."""
    failed: int
    by_source: Counter[str]
    asked: int
    hedged: int
    late: int


def run(rounds: int) -> Iterator[Figure]:
    """Measure the gateway with each number of callers."""
    loads: dict[int, list[_Load]] = {level: [] for level in _LEVELS}
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        rules = Path(directory) / "bench.yaml"
        rules.write_text(_RULES, "utf-8")
        nodes = stack.enter_context(running_cluster(rules, ["a", "b", "c"]))
        http, port = ports(2)
        words = ["gateway", "--listen", f"127.0.0.1:{http}", "--grpc", f"127.0.0.1:{port}"]
        words += ["--log-level", "error", "--cluster", nodes.url]
        stack.enter_context(program("node.entry", *words))
        wait_up(http, port)
        asyncio.run(call(port, _LEVELS[0], _WARM))
        for _ in range(rounds):
            for level in _LEVELS:
                loads[level].append(_loaded(http, port, level))
    for level, found in loads.items():
        yield from _figures(level, found)


def _loaded(http: int, port: int, level: int) -> _Load:
    """Put one load on the gateway, and read the gateway's metric counters before and after."""
    before = counted(http)
    took, failed = asyncio.run(call(port, level, _SECONDS))
    after = counted(http)
    after.subtract(before)
    sources = Counter({source: after[source] for source in map(str, Source)})
    return _Load(sorted(took), failed, sources, after[_ASKED], after[_HEDGED], after[_LATE])


async def call(
    port: int, callers: int, seconds: float, *, channels: int = _CHANNELS
) -> tuple[list[float], int]:
    """Run several callers, each with one call after the other; return the call times and the number
    of failures. `channels` is the number of connections."""
    messages = [message(number) for number in range(_CLIENTS)]
    order = count()
    took: list[float] = []
    failed = 0
    async with AsyncExitStack() as stack:
        asks: list[Any] = []
        for number in range(channels):
            options = [("grpc.use_local_subchannel_pool", 1), ("benchmark.number", number)]
            channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options)
            asks.append((await stack.enter_async_context(channel)).unary_unary(METHOD))
        until = perf_counter() + seconds

        async def caller(ask: Any) -> None:
            nonlocal failed
            while (started_at := perf_counter()) < until:
                try:
                    await ask(messages[next(order) % _CLIENTS], timeout=_LONGEST)
                except grpc.aio.AioRpcError:
                    failed += 1
                    await asyncio.sleep(_PAUSE)
                else:
                    took.append(perf_counter() - started_at)

        await asyncio.gather(*[caller(asks[number % channels]) for number in range(callers)])
    return took, failed


def message(number: int) -> bytes:
    """Encode the request message of one client."""
    request = RateLimitRequest(domain="bench")
    request.descriptors.add().entries.add(key="client", value=f"client-{number}")
    message: bytes = request.SerializeToString()
    return message


def counted(http: int) -> Counter[str]:
    """Return the gateway's counters: decisions by source, and number of checks sent to nodes."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{http}/metrics", timeout=_LONGEST) as answer:
        text = answer.read().decode()
    found: Counter[str] = Counter()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == _DECISIONS:
                found[sample.labels["source"]] += int(sample.value)
            elif sample.name in (_ASKED, _HEDGED, _LATE):
                found[sample.name] += int(sample.value)
    return found


def _figures(level: int, loads: list[_Load]) -> Iterator[Figure]:
    shares = {
        "policy_share": [_share(load.by_source["policy"], load) for load in loads],
        "shed_share": [_share(load.by_source["shed"], load) for load in loads],
        "hedged_share": [load.hedged / max(1, load.asked) for load in loads],
        "failed_share": [load.failed / max(1, load.failed + len(load.took)) for load in loads],
        "late_share": [_share(load.late, load) for load in loads],
    }
    for name, found in shares.items():
        yield figure(f"gateway_load.{name}.{level}", "ratio", found)
    yield figure(
        f"gateway_load.calls_per_s.{level}", "1/s", [len(load.took) / _SECONDS for load in loads]
    )
    for name, part in (("p50", 0.5), ("p99", 0.99)):
        times = [load.took[int(part * (len(load.took) - 1))] * 1e3 for load in loads]
        yield figure(f"gateway_load.{name}_ms.{level}", "ms", times)


def _share(part: int, load: _Load) -> float:
    return part / max(1, sum(load.by_source.values()))
