"""Effect of lost datagrams: checks at a steady rate through a relay that loses 2 % in each
direction.

Checks on one connection are delivered in order, so checks behind a lost datagram wait for its
retransmission. The figure `late per lost` counts late checks per lost check: with 1, no check waits
for another one.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import trio

from benchmarks.cluster.cluster import RULES, connected, paced, share
from benchmarks.cluster.relay import LossyRelay
from benchmarks.reporting.figure import Figure
from node.demo.cluster import running_cluster
from ringfence.client.url import parse_url

__all__ = ["run"]

_LOSS = 0.02
_PER_S = 250.0
_LATE = 3.0
"""A check is late when it takes longer than this multiple of the median without loss."""


def run(rounds: int) -> Iterator[Figure]:
    """Yield latencies without and with loss, and the number of late checks per lost check."""
    with tempfile.TemporaryDirectory() as directory:
        rules = Path(directory) / "bench.yaml"
        rules.write_text(RULES, "utf-8")
        with running_cluster(rules, ["a"]) as nodes:
            port = parse_url(nodes.url).seeds[0][1]
            with LossyRelay(port, 0.0) as sound, LossyRelay(port, _LOSS) as lossy:
                yield from _compare(
                    nodes.url.replace(f":{port}", f":{sound.port}"),
                    nodes.url.replace(f":{port}", f":{lossy.port}"),
                    rounds,
                )


def _compare(sound: str, lossy: str, rounds: int) -> Iterator[Figure]:
    clean: list[list[float]] = []
    holed: list[list[float]] = []
    for _ in range(rounds):
        clean.append(trio.run(connected, sound, paced(_PER_S)))
        holed.append(trio.run(connected, lossy, paced(_PER_S)))
    for name, samples in (("sound", clean), ("lossy", holed)):
        for part, label in ((0.5, "p50"), (0.9, "p90"), (0.99, "p99")):
            yield _figure(f"loss.{name}_{label}_us", [share(s, part) * 1e6 for s in samples], "us")
    late = []
    for before, after in zip(clean, holed, strict=True):
        bound = _LATE * share(before, 0.5)
        late.append(_late(after, bound) - _late(before, bound))
    yield _figure("loss.late_share", late, "ratio")
    lost = 1.0 - (1.0 - _LOSS) ** 2
    yield _figure("loss.late_per_lost", [each / lost for each in late], "ratio")


def _late(samples: list[float], bound: float) -> float:
    return sum([sample > bound for sample in samples]) / len(samples)


def _figure(name: str, values: list[float], unit: str) -> Figure:
    return Figure(name, median(values), unit, min(values), max(values), len(values))
