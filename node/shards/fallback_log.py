"""Log of the units that this node admitted in place of an unreachable owner. The owner charges them
later.

Decides the resolution of time. `ownership` decides when the log is used.
"""

from collections.abc import Sequence

from ringfence.limiter.serialization import fitting

__all__ = ["FallbackLog"]

_PARTS = 128
"""Parts of a period. They start where windows start, so no unit changes its window."""


class FallbackLog:
    """Units of one shard by key and by part of the key's period. It covers at most one period."""

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
        """Remove units that were refunded, the most recent units first."""
        _, parts = self._units.get(key, (0, {}))
        for number in sorted(parts, reverse=True):
            struck = min(units, parts[number])
            parts[number] -= struck
            units -= struck
            if not parts[number]:
                del parts[number]

    @property
    def keys(self) -> list[bytes]:
        """Return the keys for which the log has units."""
        return [key for key, (_, parts) in self._units.items() if parts]

    def subtract(self, other: "FallbackLog") -> None:
        """Remove the units of another log, in each part of the period separately."""
        for key, (_, theirs) in other._units.items():
            _, parts = self._units.get(key, (0, {}))
            for number in sorted(theirs.keys() & parts.keys()):
                parts[number] -= min(parts[number], theirs[number])
                if not parts[number]:
                    del parts[number]

    def forget(self, key: bytes) -> None:
        """Remove all units of a key whose counter was reset."""
        self._units.pop(key, None)

    def restore(self, key: bytes, row: Sequence[int], period_ns: int, now: int) -> None:
        """Add one row of a log that another node sent."""
        for age_ns, units in zip(row[::2], row[1::2], strict=True):
            self.add(key, units, period_ns, now - age_ns)

    def row(self, key: bytes, now: int) -> list[int]:
        """Return the row of a key: alternating ages in ns and units, oldest first; empty without
        units."""
        period_ns, parts = self._units.get(key, (1, {}))
        row: list[int] = []
        for number in sorted(parts):
            # Use the last instant of the part, so that a draining limit is charged late, not early.
            ends = -(-(number + 1) * period_ns // _PARTS) - 1
            row += (max(0, now - ends), parts[number])
        return row
