"""A member that is accused time and again leaves the ring by itself, lest shards fly to and fro.

It is the member's own decision: an opinion that others held of it in private would give them
different rings.
"""

from collections import deque

from gossip.settings import Settings

__all__ = ["FlapDamping"]

_NS = 1_000_000_000


class FlapDamping:
    """Counts accusations of one member, by itself. Times are ns."""

    def __init__(self, settings: Settings) -> None:
        self.ends_at: int | None = None
        """When the member may come back; None while it is in."""
        self._memory = round(settings.flap_memory * _NS)
        self._shortest = round(settings.flap_pause * _NS)
        self._longest = round(settings.flap_pause_most * _NS)
        self._accusations: deque[tuple[int, str]] = deque(maxlen=settings.flaps)
        self._pause = self._shortest
        self._calm_at = 0

    def accused(self, accuser: str, now: int) -> bool:
        """Take note of an accusation; whether the member should be out from now on.

        One accuser alone may be the sick one itself. Each time the member is out twice as long,
        until a whole longest pause has passed in calm; an accusation while it is out prolongs that.
        """
        self._accusations.append((now, accuser))
        is_often = len(self._accusations) == self._accusations.maxlen
        if not is_often or now - self._accusations[0][0] > self._memory:
            return False
        if len({name for _, name in self._accusations}) == 1 < len(self._accusations):
            return False
        if self.ends_at is None:
            is_calm = now >= self._calm_at
            self._pause = self._shortest if is_calm else min(2 * self._pause, self._longest)
        self.ends_at = now + self._pause
        self._calm_at = self.ends_at + self._longest
        return True

    def end(self) -> None:
        """Let the member back in."""
        self.ends_at = None
