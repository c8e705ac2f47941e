"""Effect of floods on a healthy client, and the memory of the attacked process.

Each flood is the attack of one finding of the security review (`benchmarks.gateway.attackers`).
Each flood of each round starts three node processes with replication, the admin port on node a, and
one gateway worker. A healthy client is timed in a quiet phase, during the flood, and in
a second quiet phase. Its calls begin at a fixed pace, whether or not earlier ones are answered:

- at the gateway's gRPC port, 100 calls a second of Envoy's rate limit service;
- at its HTTP port, 100 checks a second on connections that stay;
- at the UDP port of node a, 100 checks a second of keys that node a owns;
- at its admin port, 50 probes of `/healthz` a second, each on a connection of its own.

Figures of each flood:

- `p99_ratio`: 99th percentile of the flooded phase, as a multiple of that of the quiet phases;
- `rss_growth_mb`: maximum growth of the attacked process' resident memory, and `memory_bound_mb`:
its bound by docs/operate/threat-model.md;
- `failed`: calls of the healthy client that failed or were decided by the failure policy;
- `suspicions`: members that any node called suspect or dead in its log;
- `busy`, `waits`: cores that the attacked process used, and for which it waited;
- `sent_per_s`: what the attacker sent: calls, frames, requests or connections.

The attacker is a separate process whose priority is 5 levels below the other processes.
Its pace has no limit: each of its connections sends on as soon as the attacked port takes it. A
real attacker is on another machine and takes no processor time of the node. Here all processes
share a few cores. Without the lower priority the healthy client would also wait for the attacker's
own work, which this benchmark does not measure. The attacked process has one thread, so the
attacker still has most of another core. On Linux with `sched_autogroup_enabled`, a priority has
effect inside one session only, so the attacker has a session of its own with that priority.

On a machine that has other work, the ratio is too large: a process that is flooded wants a whole
core and waits for it, and an idle process does not. `waits` shows it: the share of time in which
the attacked process was ready to run and had no core.
"""

import asyncio
import re
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import Any

import grpc
from msgspec import Struct, field

from benchmarks.gateway.attackers import TOKEN
from benchmarks.gateway.gateway import children_of, ports, program, wait_up
from benchmarks.gateway.gateway_load import METHOD, counted, message
from benchmarks.members.stall import owned
from benchmarks.reporting.figure import Figure, figure
from node.demo.cluster import DemoCluster, running_cluster
from ringfence.client.connect import open_cluster
from ringfence.client.limiter import Limiter
from ringfence.client.url import parse_url
from ringfence.wire import Source

__all__ = ["BOUNDS", "PORTS", "SUSPICION", "Found", "Phase", "figures_of", "run"]

_KIB, _MIB = 1 << 10, 1 << 20
_RULE = "{requests_per_unit: 1000000000, unit: hour, algorithm: token_bucket, leases: false}"
_RULES = f"domain: bench\ndescriptors:\n  - key: client\n    rate_limit: {_RULE}\n"
_LARGE_VALUES = 15
"""Number of values of 60 kB in the rules for the flood of slow readers."""
_MAX_BYTES = 32 * _MIB
"""Setting `max_bytes` of the nodes: small, so that a few seconds of a flood reach it."""
_CLIENTS = 10_000
_KEPT = 8
"""Connections that the healthy client of the HTTP port keeps, as a proxy does."""
_WARM_S, _QUIET_S, _BEFORE_S, _FLOOD_S, _AFTER_S = 1.0, 3.0, 0.5, 5.0, 1.0
_CALLS_PER_S, _PROBES_PER_S = 100.0, 50.0
_HEDGE_AFTER_S, _DEADLINE_S = 0.1, 0.25
"""Client settings of the gateway."""
_LONGEST_S = 3.0
"""Time after which a call counts as failed: probe time-out of docs/operate/admin-port.md."""
_LOOK_S = 0.1
SUSPICION = re.compile(r"member \S+ at \S+ is (suspect|dead), was")
_BY_NODES = (Source.OWNER, Source.STANDBY)


class _Site(Struct):
    """Running nodes and gateway that are attacked, with their ports."""

    nodes: DemoCluster
    http: int
    grpc: int
    operator: int
    worker: int
    """Process id of the gateway's worker."""


_Ask = Callable[[], Awaitable[bool]]
"""Function that makes one call and returns whether the answer was right."""


class _Port(Struct, frozen=True):
    """Port that an attacker floods."""

    healthy: "Callable[[_Site], Any]"
    """Context of an `_Ask`."""
    attacked: Callable[[_Site], int]
    """Process id."""
    ports: Callable[[_Site], list[int]]
    per_s: float = _CALLS_PER_S


class Phase(Struct):
    """Latencies and failures of the healthy client in one phase."""

    took: list[float] = field(default_factory=list)
    """Seconds that each call took."""
    failed: int = 0

    @property
    def p99(self) -> float:
        """99th percentile of the call times in seconds."""
        return sorted(self.took)[int(0.99 * (len(self.took) - 1))]


class Found(Struct, frozen=True):
    """Latencies, memory and failures that one flood has caused."""

    quiet: Phase
    flooded: Phase
    growth: int
    """Bytes by which the attacked process grew at most."""
    suspicions: int
    busy: float
    waits: float
    sent: int


# -- healthy clients -------------------------------------------------------------------------------


@asynccontextmanager
async def _rls(site: _Site) -> AsyncIterator[_Ask]:
    options = [("grpc.use_local_subchannel_pool", 1)]
    order = count()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{site.grpc}", options) as channel:
        call: Any = channel.unary_unary(METHOD)

        async def ask() -> bool:
            try:
                await call(message(next(order) % _CLIENTS), timeout=_LONGEST_S)
            except grpc.aio.AioRpcError:
                return False
            return True

        yield ask


@asynccontextmanager
async def _http(site: _Site) -> AsyncIterator[_Ask]:
    order = count()
    async with AsyncExitStack() as stack:
        free: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()

        async def open_one() -> None:
            pair = await asyncio.open_connection("127.0.0.1", site.http)
            stack.callback(pair[1].close)
            free.put_nowait(pair)

        for _ in range(_KEPT):
            await open_one()

        async def ask() -> bool:
            body = f'{{"domain":"bench","descriptors":[{{"client":"{next(order) % _CLIENTS}"}}]}}'
            request = (
                "POST /v1/check HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\n\r\n{body}"
            )
            try:
                async with asyncio.timeout(_LONGEST_S):
                    reader, writer = await free.get()
                    writer.write(request.encode())
                    head = await reader.readuntil(b"\r\n\r\n")
                    size = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
                    await reader.readexactly(int(size))
                    free.put_nowait((reader, writer))
            except (OSError, TimeoutError, asyncio.IncompleteReadError):
                await open_one()
                return False
            return head.startswith(b"HTTP/1.1 200")

        yield ask


@asynccontextmanager
async def _checks(site: _Site) -> AsyncIterator[_Ask]:
    async with open_cluster(
        parse_url(site.nodes.url),
        denial_cache_size=0,
        use_leases=False,
        hedge_after=_HEDGE_AFTER_S,
        deadline=_DEADLINE_S,
    ) as cluster:
        limiter = Limiter(cluster)
        values = [owned(cluster, "bench", "client", "a", f"{number}") for number in range(200)]
        order = count()

        async def ask() -> bool:
            value = values[next(order) % len(values)]
            decision = await limiter.check("bench", {"client": value}, timeout=_DEADLINE_S)
            return decision.source in _BY_NODES

        yield ask


@asynccontextmanager
async def _probes(site: _Site) -> AsyncIterator[_Ask]:
    async def ask() -> bool:
        try:
            async with asyncio.timeout(_LONGEST_S):
                reader, writer = await asyncio.open_connection("127.0.0.1", site.operator)
                writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
                head = await reader.readline()
                writer.close()
        except (OSError, TimeoutError):
            return False
        return head.startswith(b"HTTP/1.1 200")

    yield ask


def _node_a(site: _Site) -> int:
    return site.nodes.processes["a"].pid


_GRPC = _Port(_rls, lambda site: site.worker, lambda site: [site.grpc])
_HTTP = _Port(_http, lambda site: site.worker, lambda site: [site.http])
_UDP = _Port(_checks, _node_a, lambda site: [parse_url(site.nodes.url).seeds[0][1]])
_OPERATOR = _Port(_probes, _node_a, lambda site: [site.operator], _PROBES_PER_S)

PORTS: dict[str, _Port] = {
    "p3_watches": _GRPC,
    "p4_hellos": _UDP,
    "p5_headers": _GRPC,
    "p6_settings": _GRPC,
    "p6_updates": _GRPC,
    "p6_resets": _GRPC,
    "p6_empty_frames": _GRPC,
    "p7_grpc": _GRPC,
    "p7_http": _HTTP,
    "p8_slots": _UDP,
    "p9_takeovers": _UDP,
    "p14_slow_readers": _UDP,
    "p15_new": _OPERATOR,
    "p15_kept": _OPERATOR,
    "p15_health": _OPERATOR,
    "p15_silent": _OPERATOR,
}
_CONNECTION = 100 * _KIB
"""A QUIC connection itself."""
_GRPC_BOUND = 64 * _MIB
"""Bytes kept by all connections."""
_HTTP_BOUND = 1024 * 64 * _KIB
"""Connections in total, with headers each."""
_STRANGERS_BOUND = (64 + 256) * (_CONNECTION + 64 * _KIB)
"""Connections of one address without a hello, handshakes under way; bytes before authentication."""
_UNSENT_BOUND = 32 * _MIB * 9 / 8
"""Unacknowledged answers of all sessions, in buffers that keep an eighth free."""
_OPERATOR_BOUND = (64 * (16 + 16 + 4) + (64 + 256) * 24) * _KIB
"""Connections in total, with a read, headers and a body each; the connections themselves, with
those that wait."""


def _tables_bound(connections: int) -> float:
    """Return the bound on a node's memory in bytes: counters, replicas, connections, and their
    buffers and remembered answers."""
    return 2 * _MAX_BYTES + connections * (_CONNECTION + 2 * _MIB + 4 * _MIB)


BOUNDS: dict[str, float] = {
    **dict.fromkeys([name for name, port in PORTS.items() if port is _GRPC], _GRPC_BOUND),
    "p4_hellos": _STRANGERS_BOUND,
    "p7_http": _HTTP_BOUND,
    "p8_slots": _tables_bound(8),
    "p9_takeovers": _tables_bound(6),
    "p14_slow_readers": _UNSENT_BOUND + 150 * 64 * _KIB + (150 + 256) * _CONNECTION,
    **dict.fromkeys([name for name, port in PORTS.items() if port is _OPERATOR], _OPERATOR_BOUND),
}
"""Bytes by which the attacked process may grow, by docs/operate/threat-model.md."""


def run(rounds: int, names: tuple[str, ...] = tuple(PORTS)) -> Iterator[Figure]:
    """Run each flood in every round, and yield its figures."""
    found: dict[str, list[Found]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            found[name].append(_flooded(name))
    for name, each in found.items():
        yield from figures_of(name, each)


def figures_of(name: str, found: list[Found]) -> Iterator[Figure]:
    """Return the figures of one flood over all rounds."""
    ratios = [each.flooded.p99 / each.quiet.p99 for each in found]
    yield figure(f"floods.{name}.p99_ratio", "x", ratios)
    yield figure(f"floods.{name}.p99_ms", "ms", [each.flooded.p99 * 1e3 for each in found])
    yield figure(f"floods.{name}.rss_growth_mb", "MB", [each.growth / _MIB for each in found])
    yield figure(f"floods.{name}.memory_bound_mb", "MB", [BOUNDS[name] / _MIB])
    yield figure(f"floods.{name}.failed", "calls", [float(each.flooded.failed) for each in found])
    yield figure(f"floods.{name}.suspicions", "members", [float(each.suspicions) for each in found])
    yield figure(f"floods.{name}.busy", "cores", [each.busy for each in found])
    yield figure(f"floods.{name}.waits", "cores", [each.waits for each in found])
    yield figure(f"floods.{name}.sent_per_s", "1/s", [each.sent / _FLOOD_S for each in found])


def _flooded(name: str) -> Found:
    """Start all processes, measure the healthy client, and run one flood."""
    with _site(name) as site:
        return asyncio.run(_measure(site, name))


@contextmanager
def _site(name: str) -> Iterator[_Site]:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        rules = directory / "bench.yaml"
        rules.write_text(_RULES + (_large_rules() if name == "p14_slow_readers" else ""), "utf-8")
        config = directory / "node.toml"
        config.write_text(f"max_bytes = {_MAX_BYTES}\n", "utf-8")
        http, port, operator = ports(3)
        flags = {each: ["--config", str(config)] for each in "abc"}
        flags["a"] += ["--http", f"127.0.0.1:{operator}"]
        nodes = stack.enter_context(
            running_cluster(rules, more_tokens=[f"{TOKEN}:check"], more_flags=flags)
        )
        words = ["gateway", "--listen", f"127.0.0.1:{http}", "--grpc", f"127.0.0.1:{port}"]
        words += ["--log-level", "error", "--cluster", nodes.url]
        main = stack.enter_context(program("node.entry", *words))
        wait_up(http, port, operator)
        worker = next(each for each in children_of(main) if not _is_tracker(each))
        yield _Site(nodes, http, port, operator, worker)
        nodes.assert_running()


def _large_rules() -> str:
    return "".join(
        f"  - key: other\n    value: {'v' * 60_000}{number}\n    rate_limit: {_RULE}\n"
        for number in range(_LARGE_VALUES)
    )


def _is_tracker(pid: int) -> bool:
    return b"resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()


async def _measure(site: _Site, name: str) -> Found:
    port = PORTS[name]
    pid = port.attacked(site)
    async with port.healthy(site) as ask:
        await _paced(ask, port.per_s, _WARM_S)
        with _attacker(site, name) as attacker:
            quiet = await _paced(ask, port.per_s, _QUIET_S)
            suspicions_before, before, started_at = (
                _suspicions(site),
                _schedule(pid),
                perf_counter(),
            )
            resident = [_resident(pid)]
            _send_line(attacker)
            looking = asyncio.create_task(_look(pid, resident))
            await asyncio.sleep(_BEFORE_S)
            decided = counted(site.http) if port.healthy is _rls else None
            flooded = await _paced(ask, port.per_s, _FLOOD_S - _BEFORE_S)
            spent = perf_counter() - started_at
            busy, waits = (
                (now - then) / spent for now, then in zip(_schedule(pid), before, strict=True)
            )
            sent = int(await asyncio.to_thread(_last_line, attacker))
            looking.cancel()
        await asyncio.sleep(_AFTER_S)
        if decided is not None:
            after = counted(site.http)
            flooded.failed += sum(after[each] - decided[each] for each in ("policy", "shed"))
        again = await _paced(ask, port.per_s, _QUIET_S)
        quiet.took += again.took
    suspicions = _suspicions(site) - suspicions_before
    growth = max(resident) - resident[0]
    return Found(quiet, flooded, growth, suspicions, busy, waits, sent)


async def _paced(ask: _Ask, per_s: float, seconds: float) -> Phase:
    """Start calls at a fixed rate and wait until all are answered."""
    phase = Phase()
    started_at = perf_counter()

    async def one() -> None:
        asked = perf_counter()
        is_right = await ask()
        phase.took.append(perf_counter() - asked)
        phase.failed += not is_right

    async with asyncio.TaskGroup() as group:
        for number in range(int(per_s * seconds)):
            await asyncio.sleep(max(0.0, started_at + number / per_s - perf_counter()))
            group.create_task(one())
    return phase


async def _look(pid: int, resident: list[int]) -> None:
    while True:
        await asyncio.sleep(_LOOK_S)
        resident.append(_resident(pid))


def _schedule(pid: int) -> tuple[float, float]:
    """Return the seconds for which all threads of a process ran, and for which they waited for a
    core."""
    tasks = [*Path(f"/proc/{pid}/task").iterdir()]
    rows = [(task / "schedstat").read_text("ascii").split() for task in tasks]
    return sum(int(row[0]) for row in rows) / 1e9, sum(int(row[1]) for row in rows) / 1e9


def _resident(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text("ascii")
    [line] = [each for each in status.splitlines() if each.startswith("VmRSS")]
    return int(line.split()[1]) * 1024


def _suspicions(site: _Site) -> int:
    logs = [path.read_text("utf-8", "replace") for path in site.nodes.logs.values()]
    return sum(len(SUSPICION.findall(log)) for log in logs)


@contextmanager
def _attacker(site: _Site, name: str) -> "Iterator[subprocess.Popen[str]]":
    """Start the attacker's process, which waits for a line of input."""
    ca = parse_url(site.nodes.url).ca
    assert ca is not None
    words = [name, str(_FLOOD_S), *map(str, PORTS[name].ports(site)), "--keys", str(ca.parent)]
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.gateway.attackers", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def _send_line(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def _last_line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline()
