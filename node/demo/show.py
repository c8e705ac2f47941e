"""The demo itself: a web server's log through three nodes, one killed midway, then a verdict."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.resources import as_file, files
from pathlib import Path

import trio

from hashring import Member, NodeId, Ring, shard_of
from node.demo.cluster import DemoCluster, running_cluster
from node.replay.logs import Entry, read_log, sorted_by_time
from node.replay.online import replay_online
from node.replay.oracle import Recorded, of_living_owners, over_admitted
from node.replay.tally import DOMAIN, Shape, Tally
from ringfence.client.cluster import Cluster
from ringfence.client.connect import open_cluster
from ringfence.client.decision import Decision
from ringfence.client.limiter import Limiter
from ringfence.client.url import parse_url
from ringfence.errors import PeerUnavailable
from ringfence.rules import Descriptor
from ringfence.wire import MemberRow, Source

__all__ = ["Demo", "DemoResult", "run_demo"]

_COUNTED = (Source.OWNER, Source.STANDBY, Source.LEASE)
"""Whose yes is charged to a counter of the cluster."""
_STARTUP = 30.0
"""Seconds the nodes may take to come up on a busy machine."""
_ANSWER_TIMEOUT = 2.0
"""Patience with a node, in seconds. Long, so that on a busy machine only the killed one is given up
and every other key stays with its one owner, as the final judgement demands."""
_REFRESH = 0.5


@dataclass(slots=True)
class Demo:
    """What there is to see while it runs."""

    total: int = 0
    done: int = 0
    killed: str = ""
    rows: list[tuple[MemberRow, dict[str, int] | None]] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)
    latencies: list[float] = field(default_factory=list)
    """Seconds per check, as the application waited."""

    def latency(self, share: float) -> float:
        """Seconds within which this share of the checks was answered; 0 before the first."""
        if not self.latencies:
            return 0.0
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@dataclass(frozen=True, slots=True)
class DemoResult:
    """What it came to."""

    lines: int
    malformed: int
    tally: Tally
    over_admitted: int
    """Units admitted beyond the limit, for keys whose owner lived throughout."""
    judged_keys: int
    by_source: dict[str, int]
    killed: str
    rows: list[tuple[MemberRow, dict[str, int] | None]]
    p50: float
    p99: float


async def run_demo(speed: float, demo: Demo, on_change: Callable[[], None]) -> DemoResult:
    """Start the nodes, replay the bundled log at `speed`, kill the busiest node at half way."""
    data = files("node.demo")
    with (
        as_file(data / "semicomplete-2015-05.log.gz") as log,
        as_file(data / "rules.yaml") as rules,
    ):
        reader = read_log(Path(log))
        entries = sorted_by_time(reader)
        demo.total = len(entries)
        with running_cluster(Path(rules)) as nodes:
            async with _connected(nodes) as cluster:
                return await _replay(
                    nodes, cluster, entries, speed, demo, on_change, reader.malformed
                )


@asynccontextmanager
async def _connected(nodes: DemoCluster) -> AsyncIterator[Cluster]:
    """Connect once every node answers."""
    url = parse_url(f"{nodes.url}&timeout={_ANSWER_TIMEOUT}")
    async with open_cluster(url) as cluster:
        rows: list[tuple[MemberRow, dict[str, int] | None]] = []
        with trio.move_on_after(_STARTUP):
            while True:
                nodes.assert_running()
                rows = await cluster.all_stats()
                if rows and all(counters is not None for _, counters in rows):
                    break
                await trio.sleep(0.1)
        if not rows or any(counters is None for _, counters in rows):
            raise PeerUnavailable(f"the nodes were not up after {_STARTUP:g} s")
        yield cluster


async def _replay(
    nodes: DemoCluster,
    cluster: Cluster,
    entries: list[Entry],
    speed: float,
    demo: Demo,
    on_change: Callable[[], None],
    malformed: int,
) -> DemoResult:
    shape = Shape((("client",),))
    limiter = Limiter(cluster)
    ring = Ring.of(
        Member(NodeId(row.name), row.datacenter, row.zone, row.weight)
        for row in cluster.members
        if row.state == "alive"
    )
    records: list[Recorded] = []
    by_source: dict[str, int] = {}
    victim = _busiest(await cluster.all_stats())

    def on_decision(entry: Entry, decision: Decision, sent: float, received: float) -> None:
        demo.latencies.append(received - sent)
        source = decision.source.name.lower()
        by_source[source] = by_source.get(source, 0) + 1
        key = _key_of(cluster, shape.of(entry))
        records.append(
            Recorded(
                key,
                1,
                round(sent * 1e9),
                round(received * 1e9),
                decision.allowed and decision.source in _COUNTED,
                ring.owner(shard_of(key)),
            )
        )

    def on_progress(done: int) -> None:
        demo.done = done
        if not demo.killed and done * 2 >= demo.total:
            demo.killed = victim
            nodes.kill(victim)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(_look, cluster, demo, on_change)
        demo.tally = await replay_online(
            entries,
            shape,
            limiter,
            speed=speed,
            on_decision=on_decision,
            on_progress=on_progress,
        )
        nursery.cancel_scope.cancel()
    demo.rows = await cluster.all_stats()
    rule = cluster.rules.rules()[0]
    assert rule.limit is not None
    judged = of_living_owners(records, {victim})
    return DemoResult(
        demo.total + malformed,
        malformed,
        demo.tally,
        over_admitted(judged, rule.limit),
        len({record.key for record in judged}),
        by_source,
        victim,
        demo.rows,
        demo.latency(0.5),
        demo.latency(0.99),
    )


def _busiest(rows: list[tuple[MemberRow, dict[str, int] | None]]) -> str:
    """The node that owns most shards: the one whose loss is felt most."""
    return max(rows, key=lambda row: (row[1] or {}).get("owned_shards", 0))[0].name


def _key_of(cluster: Cluster, descriptors: tuple[Descriptor, ...]) -> bytes:
    match = cluster.rules.match(DOMAIN, descriptors)[0]
    assert match is not None
    return match.key


async def _look(cluster: Cluster, demo: Demo, on_change: Callable[[], None]) -> None:
    while True:
        demo.rows = await cluster.all_stats()
        on_change()
        await trio.sleep(_REFRESH)
