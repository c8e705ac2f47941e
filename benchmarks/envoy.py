"""How long a request takes through real Envoy at 1000 a second, limited and not.

`examples/envoy` as it ships, but for its ports, before one gateway and one node. `bare` asks the
upstream that stands behind the filter, in the same Envoy. `passed_uncounted` is the share of the
requests that Envoy let through because the answer took longer than its 20 ms.
"""

import asyncio
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen

from benchmarks.figure import Figure, figure
from benchmarks.gateway import ports, program, wait_up
from node.demo.cluster import running_cluster

__all__ = ["run"]

_EXAMPLE = Path(__file__).parent.parent / "examples" / "envoy" / "envoy.yaml"
_RULES = """\
domain: edge
descriptors:
  - key: client
    rate_limit: {requests_per_unit: 1000000000, unit: hour, algorithm: token_bucket}
"""
_RATE = 1000.0
_SECONDS = 2.0
_CONNECTIONS = 20
_SETTLES = 3.0
"""Seconds until Envoy's health checks have found the gateway."""


def run(rounds: int) -> Iterator[Figure]:
    """Measure the upstream and the edge in turn."""
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        rules = directory / "rules.yaml"
        rules.write_text(_RULES, "utf-8")
        gateway, free = ports(2), ports(3)
        words = ["gateway", "--listen", f"127.0.0.1:{gateway[0]}"]
        words += ["--grpc", f"127.0.0.1:{gateway[1]}", "--log-level", "error"]
        config = directory / "envoy.yaml"
        config.write_text(_configured(gateway[1], *free), "utf-8")
        binary = str(Path(sys.executable).parent / "envoy")
        flags = ["--concurrency", "1", "--disable-hot-restart", "-l", "error"]
        with (
            running_cluster(rules, ["a"]) as nodes,
            program("node.entry", *words, "--cluster", nodes.url),
            Popen([binary, "-c", str(config), *flags]) as envoy,
        ):
            try:
                wait_up(*gateway, *free)
                asyncio.run(asyncio.sleep(_SETTLES))
                asyncio.run(_load(free[0]))
                turns = [free[1], free[0]] * rounds
                loads = [asyncio.run(_load(port)) for port in turns]
            finally:
                envoy.terminate()
    found = list(zip(loads[::2], loads[1::2], strict=True))
    for share, called in ((0.5, "p50"), (0.99, "p99")):
        for which, name in enumerate(("bare", "edge")):
            taken = [_share(each[which][0], share) * 1e6 for each in found]
            yield figure(f"envoy.{name}_{called}_us", "us", taken)
    yield figure("envoy.passed_uncounted", "ratio", [each[1][1] for each in found])


def _configured(gateway: int, edge: int, upstream: int, admin: int) -> str:
    text = _EXAMPLE.read_text("utf-8")
    changes = {"7181": gateway, "7182": gateway, "7183": gateway}
    for shipped, free in (changes | {"10000": edge, "10001": upstream, "9901": admin}).items():
        assert f"port_value: {shipped}}}" in text
        text = text.replace(f"port_value: {shipped}}}", f"port_value: {free}}}")
    return text


async def _load(port: int) -> tuple[list[float], float]:
    """Send requests at an even rate; how long each took, and what share was not counted."""
    taken: list[float] = []
    uncounted = 0
    count = round(_RATE * _SECONDS / _CONNECTIONS)
    loop = asyncio.get_running_loop()
    begun = loop.time()

    async def caller(number: int) -> None:
        nonlocal uncounted
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        request = f"GET / HTTP/1.1\r\nHost: x\r\nx-client: {number}\r\n\r\n".encode()
        for turn in range(count):
            due = begun + (turn * _CONNECTIONS + number) / _RATE
            await asyncio.sleep(max(0.0, due - loop.time()))
            sent = loop.time()
            writer.write(request)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            assert head.startswith(b"http/1.1 200"), head
            size = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
            await reader.readexactly(size)
            taken.append(loop.time() - sent)
            uncounted += b"x-ratelimit-limit" not in head
        writer.close()

    await asyncio.gather(*[caller(number) for number in range(_CONNECTIONS)])
    return taken, uncounted / len(taken)


def _share(samples: list[float], share: float) -> float:
    ordered = sorted(samples)
    return ordered[int(share * (len(ordered) - 1))]
