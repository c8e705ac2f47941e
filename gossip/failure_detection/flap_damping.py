"""Flap damping: a member that is suspected repeatedly leaves the ring for some time.

This prevents repeated transfers of its shards. The member itself decides to leave, because
different decisions of other members would give them different rings.
"""

from collections import deque

from gossip.settings import NS_PER_SECOND, Settings

__all__ = ["FlapDamping"]


class FlapDamping:
    """Suspicions of the local member by other members, and its resulting pause from the ring. Times
    are ns."""

    def __init__(self, settings: Settings) -> None:
        self.ends_at: int | None = None
        """Time when the member may return; None while it is in the ring."""
        self._memory = round(settings.flap_memory * NS_PER_SECOND)
        self._shortest = round(settings.flap_pause * NS_PER_SECOND)
        self._longest = round(settings.max_flap_pause * NS_PER_SECOND)
        self._accusations: deque[tuple[int, str]] = deque(maxlen=settings.flaps)
        self._pause = self._shortest
        self._calm_at = 0

    def on_accusation(self, accuser: str, now: int) -> bool:
        """Record that another member suspects the local member; return whether it must now stay out
        of the ring.

        A single accuser is ignored, since it may be faulty itself. Each pause is twice as long as
        the previous one, until the longest pause has passed without accusations. An accusation
        during a pause prolongs it.
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
        """End the pause, so that the member returns to the ring."""
        self.ends_at = None
