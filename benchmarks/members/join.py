"""A member that joins a node with millions of keys: its time, the node's memory, and checks
meanwhile.

The joining member fetches half of the keys and gets replicas of the others. A client reads counters
one by one, from the start of the member until it has all of them.
"""

import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from random import Random
from time import perf_counter

import trio

from benchmarks.cluster.capacity import RULES
from benchmarks.cluster.cluster import connected
from benchmarks.reporting.figure import Figure, figure
from benchmarks.reporting.rates import resident_bytes
from node.demo.cluster import STARTUP, DemoCluster, running_cluster
from ringfence import Limiter
from ringfence.errors import PeerUnavailable

__all__ = ["Sample", "join", "run"]

KEYS = 2_000_000
_BATCH = 256
_LONGEST_S = 300.0
_FETCHED = b"shards fetched"
"""Log of a node that has all counters of its shards."""


def run(rounds: int) -> Iterator[Figure]:
    """Yield the figures of a join, each from one cluster per round."""
    samples = [join(KEYS, seed) for seed in range(rounds)]
    yield figure("join.seconds", "s", [each.seconds for each in samples])
    yield figure("join.peak_bytes_per_key", "B", [each.peak_bytes / KEYS for each in samples])
    yield figure("join.slowest_read_ms", "ms", [each.slowest_s * 1e3 for each in samples])
    yield figure("join.undecided_reads", "reads", [each.undecided for each in samples])
    yield figure("join.wrong_reads", "reads", [each.wrong for each in samples])


class Sample:
    """Measurements of one join."""

    seconds = slowest_s = 0.0
    peak_bytes = undecided = wrong = 0
    """Most memory of the first node above that before the join; reads without a decision; reads of
    counters that lack their hit."""


def join(keys: int, seed: int) -> Sample:
    """Let a member join a node with many keys, and measure that."""
    with tempfile.TemporaryDirectory() as directory:
        rules, settings = Path(directory) / "bench.yaml", Path(directory) / "node.toml"
        rules.write_text(RULES, "utf-8")
        settings.write_text(f"max_keys = {2 * keys}\n", "utf-8")
        flags = {name: ("--config", str(settings)) for name in "ab"}
        with running_cluster(rules, ["a", "b"], more_flags=flags) as nodes:
            joining = nodes.processes["b"]
            joining.terminate()
            joining.wait(STARTUP)
            trio.run(connected, nodes.url, _filled(keys))
            nodes.start("b", *_flags_of(joining.args))
            return trio.run(connected, nodes.url, _reads_until_fetched(nodes, keys, Random(seed)))


def _flags_of(arguments: object) -> list[str]:
    """Return the flags after the name of a node, from the arguments of its process."""
    assert isinstance(arguments, list)
    return arguments[arguments.index("--name") + 2 :]


def _user(number: int) -> dict[str, str]:
    return {"user": f"user-{number:09}"}


def _filled(keys: int) -> Callable[[Limiter], Awaitable[None]]:
    """Return a function that makes one check of each key."""

    async def fill(limiter: Limiter) -> None:
        for begin in range(0, keys, _BATCH):
            users = [_user(number) for number in range(begin, min(begin + _BATCH, keys))]
            await limiter.check_many("bench", users)

    return fill


def _reads_until_fetched(
    nodes: DemoCluster, keys: int, random: Random
) -> Callable[[Limiter], Awaitable[Sample]]:
    """Return a function that reads counters until the joining member has its counters."""

    async def read(limiter: Limiter) -> Sample:
        sample, first = Sample(), nodes.processes["a"].pid
        before, began = resident_bytes(first), perf_counter()
        while _FETCHED not in nodes.logs["b"].read_bytes():
            nodes.assert_running()
            if perf_counter() - began > _LONGEST_S:
                raise nodes.not_up("b")
            asked_at = perf_counter()
            try:
                left = (await limiter.peek("bench", _user(random.randrange(keys)))).remaining
                sample.wrong += left != 99
            except PeerUnavailable:
                sample.undecided += 1
            sample.slowest_s = max(sample.slowest_s, perf_counter() - asked_at)
            sample.peak_bytes = max(sample.peak_bytes, resident_bytes(first) - before)
        sample.seconds = perf_counter() - began
        return sample

    return read
