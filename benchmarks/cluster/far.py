"""Latency of local checks while another data center, 40 ms away, answers slowly or restarts.

Three node processes use a simulated network of relays. First, local checks leave in one frame with
a check that the other data center decides. Then an exhausted key of a split rule is checked without
a pause, which queries the other data center each time. Meanwhile the remote node is started,
stopped and killed 20 times. No node may end, and an owner must answer each check.
"""

import signal
import socket
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter, sleep

import trio

from benchmarks.cluster.cluster import share
from benchmarks.cluster.relay import DistantRelay
from benchmarks.node_process import start_node
from benchmarks.reporting.figure import Figure
from ringfence.client.connect import connect, open_cluster
from ringfence.client.limiter import Limiter
from ringfence.client.url import parse_url
from ringfence.wire import Source

__all__ = ["FarNodes", "local_beside_far", "run", "under_starts"]

DELAY = 0.04
"""One-way delay between the data centers in seconds."""
STARTS = 20
_PLACES = {"e1": "eu", "e2": "eu", "u1": "us"}
_FAR = "u1"
_RULES = """\
domain: bench
descriptors:
  - key: near
    rate_limit: {requests_per_unit: 1000000000, unit: hour, algorithm: token_bucket}
  - key: home
    rate_limit: {requests_per_unit: 1000000000, unit: hour, global: {mode: home, home: us}}
  - key: split
    rate_limit: {requests_per_unit: 10, unit: hour, algorithm: fixed_window, global: {mode: split}}
"""
_LOCAL = 20
_FRAMES = 100
_KEYS = 50
_PAUSE = 0.005
"""Seconds between two rounds of checks of exhausted keys."""
_STARTUP = 30.0


def run(rounds: int) -> Iterator[Figure]:
    """Yield latencies of local checks without and with a remote check, and during 20 starts of a
    remote node."""
    with tempfile.TemporaryDirectory() as directory, FarNodes(Path(directory)) as nodes:
        nodes.start_all()
        alone, beside, far = [], [], []
        for _ in range(rounds):
            alone.append(trio.run(local_beside_far, nodes.url, _FRAMES, False)[0])
            local, remote = trio.run(local_beside_far, nodes.url, _FRAMES, True)
            beside.append(local)
            far.append(remote)
        for name, samples in (("alone", alone), ("local", beside), ("far", far)):
            for part, label in ((0.5, "p50"), (0.99, "p99")):
                yield _figure(f"far.{name}_{label}_ms", [share(s, part) * 1e3 for s in samples])
        answers = trio.run(under_starts, nodes, STARTS)
        counts = {
            "starts": nodes.starts,
            "checks": answers.total(),
            "by_policy": answers[Source.POLICY] + answers[Source.LOCAL],
            "nodes_ended": len(nodes.ended),
            "internal_errors": trio.run(_internal_errors, nodes.url),
        }
        for name, count in counts.items():
            yield Figure(f"far.{name}", count, "", count, count, 1)


class FarNodes:
    """Node processes of two data centers and the network between them."""

    def __init__(self, home: Path, delay: float = DELAY) -> None:
        self.ended: list[str] = []
        """Nodes that ended by themselves."""
        self.starts = 0
        """Number of restarts of the remote node."""
        self._home = home
        self._rules = home / "rules.yaml"
        self._rules.write_text(_RULES, "utf-8")
        self._ports = dict(zip(_PLACES, _free_ports(len(_PLACES)), strict=True))
        places = {self._ports[name]: place for name, place in _PLACES.items()}
        self._relay = DistantRelay(places, delay)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "FarNodes":
        self._relay.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        for name in list(self._processes):
            self.stop(name, signal.SIGKILL)
        self._relay.__exit__(None, None, None)

    @property
    def url(self) -> str:
        """Address of the cluster with the local nodes as seeds."""
        near = ",".join(f"127.0.0.1:{self._door(name)}" for name in _PLACES if name != _FAR)
        return f"ringfence://{near}?datacenter=eu"

    def start_all(self) -> None:
        """Start all nodes and wait until their views agree."""
        for name in _PLACES:
            self.start(name)
        for name in _PLACES:
            self.wait_for(name, f"view of {len(_PLACES)} members")

    def start(self, name: str) -> None:
        """Start the process of one node."""
        self.starts += (self._home / f"{name}.log").exists()
        join = [f"--join=127.0.0.1:{self._door(each)}" for each in _PLACES if each != name]
        arguments = [
            *("node", "--name", name, "--listen", f"127.0.0.1:{self._ports[name]}"),
            *("--advertise", f"127.0.0.1:{self._door(name)}"),
            *("--datacenter", _PLACES[name], "--rules", str(self._rules), *join),
        ]
        self._processes[name] = start_node("node.entry", arguments, self._log(name))

    def wait_for(self, name: str, words: str) -> None:
        """Wait until a text appears in a node's log, or until any node has ended."""
        give_up = monotonic() + _STARTUP
        while words.encode() not in self._log(name).read_bytes():
            self.look()
            if self.ended:
                return
            if monotonic() > give_up:
                raise RuntimeError(f"node {name} never said {words!r}:\n{self.log(name)}")
            sleep(0.02)

    def stop(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a node process and wait for its end."""
        self.look()
        process = self._processes.pop(name)
        process.send_signal(number)
        process.wait()

    def look(self) -> None:
        """Record the nodes whose processes have ended unexpectedly."""
        found = [name for name, each in self._processes.items() if each.poll() is not None]
        self.ended += [name for name in found if name not in self.ended]

    def log(self, name: str) -> str:
        """Return the log of a node since its last start."""
        return self._log(name).read_text("utf-8", "replace")

    def _log(self, name: str) -> Path:
        return self._home / f"{name}.log"

    def _door(self, name: str) -> int:
        return self._relay.doors[self._ports[name]]


async def local_beside_far(url: str, frames: int, has_far: bool) -> tuple[list[float], list[float]]:
    """Return latencies in seconds: of 20 local checks at a time, and of a remote check beside
    them."""
    local: list[float] = []
    far: list[float] = []
    async with connect(url, raise_on_outage=True, denial_cache_size=0, use_leases=False) as limiter:

        async def check(key: str, number: int, samples: list[float]) -> None:
            started_at = perf_counter()
            await limiter.check("bench", {key: str(number)})
            samples.append(perf_counter() - started_at)

        for number in range(frames):
            async with trio.open_nursery() as nursery:
                for place in range(_LOCAL):
                    nursery.start_soon(check, "near", number * _LOCAL + place, local)
                    if has_far and place == _LOCAL // 2:
                        nursery.start_soon(check, "home", number, far)
    warm = _LOCAL * (frames // 10)  # The first ones connect and warm up.
    return local[warm:], far


async def under_starts(nodes: FarNodes, starts: int) -> Counter[Source]:
    """Check exhausted keys while the remote node stops and starts; return the number of answers by
    source."""
    answers: Counter[Source] = Counter()
    async with connect(nodes.url, denial_cache_size=0, use_leases=False) as limiter:
        keys = [{"split": str(number)} for number in range(_KEYS)]
        for _ in range(12):
            await limiter.check_many("bench", keys)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_ask, limiter, keys, answers)
            for number in range(starts):
                if nodes.ended:
                    break
                stop = signal.SIGTERM if number % 2 else signal.SIGKILL
                await trio.to_thread.run_sync(nodes.stop, _FAR, stop)
                nodes.start(_FAR)
                words = f"view of {len(_PLACES)} members"
                await trio.to_thread.run_sync(nodes.wait_for, _FAR, words)
            nursery.cancel_scope.cancel()
    nodes.look()
    return answers


async def _ask(limiter: Limiter, keys: list[dict[str, str]], answers: Counter[Source]) -> None:
    while True:
        for key in keys:
            decision = await limiter.check("bench", key)
            answers[decision.source] += 1
            await trio.sleep(_PAUSE)


async def _internal_errors(url: str) -> int:
    async with open_cluster(parse_url(url)) as cluster:
        rows = await cluster.admin.all_stats()
    named = [counters for _, counters in rows if counters is not None]
    return sum(
        count for counters in named for name, count in counters.items() if "internal_error" in name
    )


def _figure(name: str, samples: list[float]) -> Figure:
    return Figure(name, median(samples), "ms", min(samples), max(samples), len(samples))


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(count)]
    try:
        for held in sockets:
            held.bind(("127.0.0.1", 0))
        return [int(held.getsockname()[1]) for held in sockets]
    finally:
        for held in sockets:
            held.close()
