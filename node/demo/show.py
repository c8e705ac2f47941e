"""The steps of the demo: replay a web server's log through three nodes, kill one, verify the
counts.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.resources import as_file, files
from pathlib import Path

import trio
from msgspec import Struct, field

from hashring import Member, NodeId, Ring, shard_of
from node.demo.cluster import STARTUP, DemoCluster, started_cluster
from node.demo.shares import Share, Shares
from node.replay.log_formats import Entry
from node.replay.logs import read_log, sorted_by_time
from node.replay.online import replay_online
from node.replay.oracle import Recorded, of_living_owners, over_admitted
from node.replay.tally import DOMAIN, Shape, Tally
from ringfence.client.cluster.cluster import Cluster
from ringfence.client.connect import open_cluster
from ringfence.client.decision import Decision
from ringfence.client.limiter import Limiter
from ringfence.client.url import parse_url
from ringfence.errors import PeerUnavailable
from ringfence.limiter import NS_PER_SECOND, Limit
from ringfence.rules import Descriptor
from ringfence.rules.loading.yaml_files import load_path
from ringfence.wire import MemberRow, Source

__all__ = ["Demo", "DemoResult", "run_demo"]

_COUNTED = (Source.OWNER, Source.STANDBY, Source.LEASE)
"""Sources of decisions that are charged to a counter of the cluster."""
_ANSWER_TIMEOUT = 2.0
"""Time-out of a node in seconds. It is long, so that on a busy machine only the killed node is
given up. The final check needs one owner for every other key."""
_REFRESH = 0.5
"""Seconds between two queries of the shards."""
_TICK = 0.25
_LOOK_AGAIN = 0.05


class Demo(Struct):
    """State of the running demo, which the display shows."""

    speed: float
    limit: Limit | None = None
    """Limit of the only rule."""
    span_ns: int = 0
    """Time between the first and the last line of the log."""
    total: int = 0
    """Requests in the log."""
    started_at: float | None = None
    """Start of the replay on trio's clock; None before."""
    took: float = 0.0
    """Seconds of replay until now."""
    killed: str = ""
    is_over: bool = False
    up: set[str] = field(default_factory=set)
    """The nodes that see all others."""
    shards: dict[str, int] = field(default_factory=dict)
    """Shards that each node owned at the last query."""
    shares: dict[str, Share] = field(default_factory=dict)
    """Checks by deciding node."""
    latencies: list[float] = field(default_factory=list)
    """Seconds that the application waited per check."""

    def latency(self, share: float) -> float:
        """Return a quantile of the answer times in seconds; 0 before the first answer."""
        if not self.latencies:
            return 0.0
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class DemoResult(Struct, frozen=True):
    """Result of the demo: counts and their verification."""

    lines: int
    malformed: int
    tally: Tally
    over_admitted: int
    """Units admitted beyond the limit, for keys whose owner was not killed."""
    judged_keys: int
    by_source: dict[str, int]
    shares: dict[str, Share]
    killed: str
    rows: list[tuple[MemberRow, dict[str, int] | None]]
    p50: float
    p99: float


async def run_demo(demo: Demo, on_change: Callable[[], None]) -> DemoResult:
    """Start the nodes, replay the bundled log, and kill the busiest node midway.

    `on_change` is called before anything is started, and then after every change.
    """
    data = files("node.demo")
    with (
        as_file(data / "semicomplete-2015-05.log.gz") as log,
        as_file(data / "rules.yaml") as rules,
    ):
        demo.limit = load_path(Path(rules)).rules.rules()[0].limit
        reader = read_log(Path(log))
        entries = sorted_by_time(reader)
        demo.total = len(entries)
        demo.span_ns = entries[-1].time_ns - entries[0].time_ns
        on_change()
        with started_cluster(Path(rules)) as nodes:
            await _wait_until_up(nodes, demo, on_change)
            async with _connected(nodes) as cluster:
                return await _replay(nodes, cluster, entries, demo, on_change, reader.malformed)


async def _wait_until_up(nodes: DemoCluster, demo: Demo, on_change: Callable[[], None]) -> None:
    with trio.move_on_after(STARTUP):
        while missing := nodes.missing():
            nodes.assert_running()
            if demo.up != (up := set(nodes.processes).difference(missing)):
                demo.up = up
                on_change()
            await trio.sleep(_LOOK_AGAIN)
        demo.up = set(nodes.processes)
        on_change()
        return
    raise nodes.not_up(nodes.missing()[0])


@asynccontextmanager
async def _connected(nodes: DemoCluster) -> AsyncIterator[Cluster]:
    """Connect to the cluster as soon as every node answers."""
    url = parse_url(f"{nodes.url}&timeout={_ANSWER_TIMEOUT}")
    async with open_cluster(url) as cluster:
        rows: list[tuple[MemberRow, dict[str, int] | None]] = []
        with trio.move_on_after(STARTUP):
            while True:
                nodes.assert_running()
                rows = await cluster.admin.all_stats()
                if rows and all(counters is not None for _, counters in rows):
                    break
                await trio.sleep(0.1)
        if not rows or any(counters is None for _, counters in rows):
            raise PeerUnavailable(f"the nodes were not up after {STARTUP:g} s")
        yield cluster


async def _replay(
    nodes: DemoCluster,
    cluster: Cluster,
    entries: list[Entry],
    demo: Demo,
    on_change: Callable[[], None],
    malformed: int,
) -> DemoResult:
    shape = Shape.parse(["client"])
    limiter = Limiter(cluster)
    ring = Ring.of(
        Member(NodeId(row.name), row.datacenter, row.zone, row.weight)
        for row in cluster.members
        if row.state == "alive"
    )
    records: list[Recorded] = []
    by_source: dict[str, int] = {}
    shares = Shares(ring)
    demo.shares = shares.by_name
    victim = _busiest(await cluster.admin.all_stats())
    demo.started_at = trio.current_time()

    def on_decision(entry: Entry, decision: Decision, sent: float, received: float) -> None:
        demo.latencies.append(received - sent)
        source = decision.source.name.lower()
        by_source[source] = by_source.get(source, 0) + 1
        key = _key_of(cluster, shape.of(entry))
        shares.add(decision, shard_of(key), received)
        records.append(
            Recorded(
                key,
                1,
                round(sent * NS_PER_SECOND),
                round(received * NS_PER_SECOND),
                decision.allowed and decision.source in _COUNTED,
                ring.owner(shard_of(key)),
            )
        )

    def on_progress(done: int) -> None:
        if not demo.killed and done * 2 >= demo.total:
            demo.killed = victim
            nodes.kill(victim)
            shares.died(victim, trio.current_time())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(_count_shards, cluster, demo)
        nursery.start_soon(_tick, demo, on_change)
        tally = await replay_online(
            entries,
            shape,
            limiter,
            speed=demo.speed,
            on_decision=on_decision,
            on_progress=on_progress,
        )
        nursery.cancel_scope.cancel()
    demo.took = trio.current_time() - demo.started_at
    rows = await cluster.admin.all_stats()
    _note_shards(rows, demo)
    demo.is_over = True
    rule = cluster.rules.rules()[0]
    assert rule.limit is not None
    judged = of_living_owners(records, {victim})
    return DemoResult(
        demo.total + malformed,
        malformed,
        tally,
        over_admitted(judged, rule.limit),
        len({record.key for record in judged}),
        by_source,
        shares.by_name,
        victim,
        rows,
        demo.latency(0.5),
        demo.latency(0.99),
    )


def _busiest(rows: list[tuple[MemberRow, dict[str, int] | None]]) -> str:
    """Return the node that owns the most shards."""
    return max(rows, key=lambda row: (row[1] or {}).get("owned_shards", 0))[0].name


def _key_of(cluster: Cluster, descriptors: tuple[Descriptor, ...]) -> bytes:
    match = cluster.rules.match(DOMAIN, descriptors)[0]
    assert match is not None
    return match.key


async def _tick(demo: Demo, on_change: Callable[[], None]) -> None:
    assert demo.started_at is not None
    while True:
        demo.took = trio.current_time() - demo.started_at
        on_change()
        await trio.sleep(_TICK)


async def _count_shards(cluster: Cluster, demo: Demo) -> None:
    """Ask the nodes how many shards each one owns. The query is slow while a member is dead."""
    while True:
        _note_shards(await cluster.admin.all_stats(), demo)
        await trio.sleep(_REFRESH)


def _note_shards(rows: list[tuple[MemberRow, dict[str, int] | None]], demo: Demo) -> None:
    for row, counters in rows:
        if counters is not None:
            demo.shards[row.name] = counters.get("owned_shards", 0)
