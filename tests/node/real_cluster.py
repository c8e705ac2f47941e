"""Clusters of node processes for tests on a busy machine."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep

from node.demo.cluster import DemoCluster, started_cluster

__all__ = ["patient", "real_cluster"]

_STARTUP = 90.0
"""Longest time, in seconds, in which node processes start and see each other."""


def patient(url: str) -> str:
    """Return a cluster's address with a long time-out of checks."""
    return f"{url}{'&' if '?' in url else '?'}timeout=20"


@contextmanager
def real_cluster(rules: Path, names: Sequence[str], scopes: str) -> Iterator[DemoCluster]:
    """Run a node process for each name; `scopes` are those of the token in the address."""
    with started_cluster(rules, names, scopes) as cluster:
        give_up = monotonic() + _STARTUP
        while missing := cluster.missing():
            cluster.assert_running()
            assert monotonic() < give_up, f"nodes are not up: {missing}"
            sleep(0.05)
        yield replace(cluster, url=patient(cluster.url))
