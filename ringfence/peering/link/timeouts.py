"""Who has waited long enough for one member alone.

One timer for all checks under way to a member, whatever each was promised: a timer for each would
cost about as much as the check. Decides when crowds are told that they are late, not what they make
of it.
"""

from ringfence.peering.coalescer import PendingBatch
from ringfence.transport.interface import Timer, Transport

__all__ = ["TimeoutWatcher"]


class TimeoutWatcher:
    """Watches crowds until they are answered, or late."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._dues: dict[PendingBatch, float] = {}
        """When each is late, in the order in which they asked."""
        self._timer: Timer | None = None
        self._rings_at = float("inf")

    def watch(self, crowd: PendingBatch, within: float) -> None:
        """Tell a crowd, `within` seconds after it asked, that it is late."""
        due = crowd.asked_at + within
        if self._dues.get(crowd, float("inf")) <= due:
            return
        self._dues[crowd] = due
        if due < self._rings_at:
            self._ring_at(due)

    def _ring_at(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._rings_at = when
        self._timer = self._transport.call_at(when, self._ring)

    def _ring(self) -> None:
        self._timer, self._rings_at = None, float("inf")
        now = self._transport.now()
        dues, self._dues = self._dues, {}
        for crowd, due in dues.items():
            if crowd.is_answered:
                continue
            if due <= now:
                crowd.be_late()
            else:
                self._dues[crowd] = due
        if self._dues:
            self._ring_at(min(self._dues.values()))
