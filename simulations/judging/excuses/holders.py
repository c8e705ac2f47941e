"""Observed holders of shards: which host alone held a shard, and from when to when.

The holder of a shard decides its checks. While one host alone holds a shard, it counts all checks
that owners decide, so each of its decisions follows from its decisions before.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

__all__ = ["Holders", "Tenure"]


class Tenure(NamedTuple):
    """Time in which one host alone held a shard."""

    begin: float
    end: float


@dataclass(slots=True)
class Holders:
    """Held shards of each host over time, as the world sampled them."""

    interval_s: float = 0.1
    """Seconds between two samples. A change may be shorter and remain unseen."""
    samples: dict[str, list[tuple[float, bytes]]] = field(default_factory=dict)
    """Per host: each change, with one byte per shard: the state in which the host holds it, or 0;
    empty for none."""
    _tenures: dict[tuple[Sequence[str], int], list[Tenure]] = field(default_factory=dict)

    def add(self, host: str, at: float, held: bytes) -> None:
        """Record the shards that a host holds at an instant, and their states.

        A change of the state may change the counters.
        """
        samples = self.samples.setdefault(host, [])
        if not samples or samples[-1][1] != held:
            samples.append((at, held))

    def tenure(self, hosts: tuple[str, ...], shard: int, begin: float, end: float) -> Tenure | None:
        """Return the time around an interval in which one of some hosts alone held a shard, in one
        state; None if there were several holders, none, or a change."""
        tenures = self._tenures.get((hosts, shard))
        if tenures is None:
            tenures = self._tenures[hosts, shard] = self._find_tenures(hosts, shard)
        at = bisect_right(tenures, begin, key=lambda each: each.begin) - 1
        return tenures[at] if at >= 0 and end <= tenures[at].end else None

    def _find_tenures(self, hosts: Sequence[str], shard: int) -> list[Tenure]:
        changes: dict[float, dict[str, int]] = {}
        for host in hosts:
            state = 0
            for at, held in self.samples.get(host, ()):
                if state != (state := held[shard] if held else 0):
                    changes.setdefault(at, {})[host] = state
        found: list[Tenure] = []
        holders: set[str] = set()
        since = -inf
        for at in sorted(changes):
            if len(holders) == 1:
                found.append(Tenure(since, at - self.interval_s))
            for host, state in changes[at].items():
                (holders.add if state else holders.discard)(host)
            since = at
        if len(holders) == 1:
            found.append(Tenure(since, inf))
        return found
