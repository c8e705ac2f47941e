"""Log of the units admitted in place of an unreachable owner, which the owner charges later.

Decides the resolution of time. `ownership` decides when the log is used.
"""

from collections.abc import Sequence

from ringfence.limiter.serialization import fitting

__all__ = ["FallbackLog"]

_PARTS = 128
"""Parts of a period. They start where windows start, so no unit changes its window."""


class FallbackLog:
    """Units by key and by part of the period, for one shard. Holds one period at most."""

    def __init__(self) -> None:
        self._units: dict[bytes, tuple[int, dict[int, int]]] = {}
        """Per key its period in ns, and units by number of the part."""

    def add(self, key: bytes, units: int, period_ns: int, now: int) -> None:
        """Add units that were admitted or charged at `now`."""
        _, parts = self._units.setdefault(key, (period_ns, {}))
        number = now * _PARTS // period_ns
        before = parts.get(number, 0)
        parts[number] = before + fitting(units, before)
        if len(parts) > _PARTS + 1:
            for old in [part for part in parts if part < number - _PARTS]:
                del parts[old]

    def take_back(self, key: bytes, units: int) -> None:
        """Remove units that were refunded, the newest first."""
        _, parts = self._units.get(key, (0, {}))
        for number in sorted(parts, reverse=True):
            struck = min(units, parts[number])
            parts[number] -= struck
            units -= struck
            if not parts[number]:
                del parts[number]

    @property
    def keys(self) -> list[bytes]:
        """Return the keys that have units."""
        return [key for key, (_, parts) in self._units.items() if parts]

    def subtract(self, other: "FallbackLog") -> None:
        """Remove the units of another log, each from its part of the period."""
        for key, (_, theirs) in other._units.items():
            _, parts = self._units.get(key, (0, {}))
            for number in sorted(theirs.keys() & parts.keys()):
                parts[number] -= min(parts[number], theirs[number])
                if not parts[number]:
                    del parts[number]

    def forget(self, key: bytes) -> None:
        """Remove the units of a key that was reset."""
        self._units.pop(key, None)

    def restore(self, key: bytes, row: Sequence[int], period_ns: int, now: int) -> None:
        """Add the row of another node's log."""
        for age_ns, units in zip(row[::2], row[1::2], strict=True):
            self.add(key, units, period_ns, now - age_ns)

    def row(self, key: bytes, now: int) -> list[int]:
        """Return age in ns and units in turns, the oldest first; empty for a key without units."""
        period_ns, parts = self._units.get(key, (1, {}))
        row: list[int] = []
        for number in sorted(parts):
            # The last instant of the part: a limit that drains is charged too late, not too early.
            ends = -(-(number + 1) * period_ns // _PARTS) - 1
            row += (max(0, now - ends), parts[number])
        return row
