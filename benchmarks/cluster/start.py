"""Time and processor time from the start of a node to its first answer, and the cost of idle nodes.

Every sample starts new processes, so nothing is warm except the file cache.
"""

import logging
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter, sleep

import trio

from benchmarks.cluster.cluster import RULES
from benchmarks.reporting.figure import Figure, figure, interleaved
from benchmarks.reporting.rates import cpu_s_of
from node.demo.cluster import DemoCluster, running_cluster, started_cluster
from ringfence.client.connect import connect
from ringfence.errors import PeerUnavailable

__all__ = ["run"]

_IMPORTS = {
    "python": "",
    "client": "from ringfence import connect",
    "node": "from node.entry import defer_garbage_collection; defer_garbage_collection()\n"
    "import node.cli.command, node.cli.node, node.serve",
}
"""Statements of the processes whose imports are measured; the first one imports nothing. The last
one does what the command `ringfence node` does."""
_IDLE_S = 10.0
_SETTLED_S = 3.0
"""Seconds after the start of a cluster until its first exchanges and transfers are over."""
_ATTEMPT_S = 0.2


def run(rounds: int) -> Iterator[Figure]:
    """Yield import times, the time until a lone node answers, and processor shares of idle
    nodes."""
    with tempfile.TemporaryDirectory() as directory:
        rules = Path(directory) / "bench.yaml"
        rules.write_text(RULES, "utf-8")
        imports: dict[str, Callable[[], float]] = {
            name: _import_s(code) for name, code in _IMPORTS.items()
        }
        samples = interleaved(imports, rounds)
        for name in ("client", "node"):
            added = [s - bare for s, bare in zip(samples[name], samples["python"], strict=True)]
            yield figure(f"start.import_{name}_s", "s", added)
        answers = [_first_answer(rules) for _ in range(rounds)]
        yield figure("start.first_answer_s", "s", [wall for wall, _ in answers])
        yield figure("start.first_answer_cpu_s", "s", [cpu for _, cpu in answers])
        for names in (["a"], ["a", "b", "c"]):
            shares = [_idle_share(rules, names) for _ in range(rounds)]
            yield figure(f"start.idle_percent_{len(names)}", "% of a core", shares)


def _import_s(code: str) -> Callable[[], float]:
    """Return a function that measures the seconds of a new Python process that runs `code`."""

    def sample() -> float:
        started_at = perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        return perf_counter() - started_at

    return sample


def _first_answer(rules: Path) -> tuple[float, float]:
    """Return the seconds until a lone node has answered its first check, and its processor time
    until then."""
    logger = logging.getLogger("ringfence")
    before = logger.level
    logger.setLevel(logging.CRITICAL)  # The first attempts find no node.
    try:
        started_at = perf_counter()
        with started_cluster(rules, ["a"]) as nodes:
            trio.run(_ask_until_answered, nodes)
            return perf_counter() - started_at, cpu_s_of(nodes.processes["a"].pid)
    finally:
        logger.setLevel(before)


async def _ask_until_answered(nodes: DemoCluster) -> None:
    while True:
        nodes.assert_running()
        try:
            async with connect(
                nodes.url, raise_on_outage=True, connect_timeout=_ATTEMPT_S
            ) as limiter:
                await limiter.check("bench", {"user": "first"})
                return
        except PeerUnavailable:
            await trio.sleep(0.005)


def _idle_share(rules: Path, names: list[str]) -> float:
    """Return the share of one core, in percent, that each node of an idle cluster uses."""
    with running_cluster(rules, names) as nodes:
        sleep(_SETTLED_S)
        pids = [process.pid for process in nodes.processes.values()]
        before = sum(map(cpu_s_of, pids))
        sleep(_IDLE_S)
        return 100 * (sum(map(cpu_s_of, pids)) - before) / _IDLE_S / len(pids)
