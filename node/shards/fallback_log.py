"""What a node admitted in another's place, kept for the true owner to charge when it is back.

Decides how finely time is kept. Whether anybody ever asks for a tally is for `ownership` to say.
"""

from collections.abc import Sequence

from ringfence.limiter.serialization import fitting

__all__ = ["FallbackLog"]

_PARTS = 128
"""A period is kept in so many parts. They begin where windows do, so no unit changes its window."""


class FallbackLog:
    """Units by key and by part of the period, for one shard. Holds one period at most."""

    def __init__(self) -> None:
        self._units: dict[bytes, tuple[int, dict[int, int]]] = {}
        """Per key its period in ns, and units by number of the part."""

    def add(self, key: bytes, units: int, period_ns: int, now: int) -> None:
        """Note that `units` were admitted or charged at `now`."""
        _, parts = self._units.setdefault(key, (period_ns, {}))
        number = now * _PARTS // period_ns
        before = parts.get(number, 0)
        parts[number] = before + fitting(units, before)
        if len(parts) > _PARTS + 1:
            for old in [part for part in parts if part < number - _PARTS]:
                del parts[old]

    def take_back(self, key: bytes, units: int) -> None:
        """Strike out units that were given back, the newest first."""
        _, parts = self._units.get(key, (0, {}))
        for number in sorted(parts, reverse=True):
            struck = min(units, parts[number])
            parts[number] -= struck
            units -= struck
            if not parts[number]:
                del parts[number]

    def forget(self, key: bytes) -> None:
        """Drop what a key was admitted: it was reset."""
        self._units.pop(key, None)

    def restore(self, key: bytes, row: Sequence[int], period_ns: int, now: int) -> None:
        """Go on from what another node kept, as `row` wrote it."""
        for age_ns, units in zip(row[::2], row[1::2], strict=True):
            self.add(key, units, period_ns, now - age_ns)

    def row(self, key: bytes, now: int) -> list[int]:
        """Age in ns and units in turns, the oldest first; empty for a key without any."""
        period_ns, parts = self._units.get(key, (1, {}))
        row: list[int] = []
        for number in sorted(parts):
            # The part's last instant: what drains is charged rather too late than too early.
            ends = -(-(number + 1) * period_ns // _PARTS) - 1
            row += (max(0, now - ends), parts[number])
        return row
