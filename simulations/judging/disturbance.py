"""Observed disturbances of shards: when a shard was not on its usual owner, or members disagreed.

A disturbance alone excuses nothing. It only shortens the excuse of a fault: a shard that the fault
did not disturb is judged exactly.
"""

from dataclasses import dataclass, field
from math import inf

__all__ = ["QUIET_S", "Disturbances"]

QUIET_S = 2.0
"""Seconds without a disturbance after which a data center counts as settled."""


@dataclass(slots=True)
class Disturbances:
    """Disturbed shards of each data center over time, as the world sampled them."""

    interval_s: float = 0.1
    """Seconds between two samples. A disturbance may be shorter and remain unseen."""
    samples: dict[str, list[tuple[float, int]]] = field(default_factory=dict)
    """Per data center: each change, with one byte per shard: not 0 if the shard is disturbed."""
    _spans: dict[tuple[str, int], list[tuple[float, float]]] = field(default_factory=dict)
    _marks: dict[str, list[bytes]] = field(default_factory=dict)
    """The numbers of `samples` as bytes, which are faster to search."""

    def add(self, datacenter: str, at: float, disturbed: int) -> None:
        """Record the disturbed shards of a data center at an instant."""
        samples = self.samples.setdefault(datacenter, [])
        if not samples or samples[-1][1] != disturbed:
            samples.append((at, disturbed))

    def spans(self, datacenter: str, shard: int) -> list[tuple[float, float]]:
        """Return the time spans in which a shard was disturbed, one sample longer on both sides.

        A data center that was never sampled is disturbed all the time.
        """
        place = datacenter, shard
        if place not in self._spans:
            self._spans[place] = self._find_spans(datacenter, shard)
        return self._spans[place]

    def is_disturbed(self, datacenter: str, shard: int, begin: float, end: float) -> bool:
        """Return whether a shard was disturbed at some instant between `begin` and `end`."""
        return any(first <= end and begin <= last for first, last in self.spans(datacenter, shard))

    def settled_after(self, datacenter: str, instant: float) -> float:
        """Return the first instant from `instant` on at which a data center has settled.

        From then on, it is undisturbed for `QUIET_S` seconds. Infinity if there is no such instant.
        """
        samples = self.samples.get(datacenter)
        if not samples:
            return inf
        ends = [at for at, _ in samples[1:]] + [inf]
        for (begin, disturbed), end in zip(samples, ends, strict=True):
            if not disturbed and end - max(begin, instant) >= QUIET_S:
                return max(begin, instant) + self.interval_s
        return inf

    def _find_spans(self, datacenter: str, shard: int) -> list[tuple[float, float]]:
        if datacenter not in self.samples:
            return [(float("-inf"), float("inf"))]
        samples, marks = self.samples[datacenter], self._marks.setdefault(datacenter, [])
        marks += [_as_bytes(disturbed) for _, disturbed in samples[len(marks) :]]
        found: list[tuple[float, float]] = []
        since: float | None = None
        for (at, _), marked in zip(samples, marks, strict=True):
            is_disturbed = shard < len(marked) and marked[shard]
            if is_disturbed and since is None:
                since = at - self.interval_s
            elif not is_disturbed and since is not None:
                found.append((since, at + self.interval_s))
                since = None
        if since is not None:
            found.append((since, float("inf")))
        return found


def _as_bytes(disturbed: int) -> bytes:
    return disturbed.to_bytes((disturbed.bit_length() + 7) // 8, "little")
