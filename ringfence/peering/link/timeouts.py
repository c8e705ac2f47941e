"""Time-outs of single checks, with one shared timer per link.

A timer for each check would cost about as much as the check. `coalescer` handles late batches.
"""

from ringfence.peering.coalescer import PendingBatch
from ringfence.transport.interface import Timer, Transport

__all__ = ["TimeoutWatcher"]


class TimeoutWatcher:
    """Timer that marks pending batches as late when they are not answered in time."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._due_by_batch: dict[PendingBatch, float] = {}
        """Time at which each batch is late, in the order in which the batches were opened."""
        self._timer: Timer | None = None
        self._fires_at = float("inf")

    def watch(self, pending: PendingBatch, within: float) -> None:
        """Mark a batch as late `within` seconds after it was opened, unless it is answered."""
        due = pending.asked_at + within
        if self._due_by_batch.get(pending, float("inf")) <= due:
            return
        self._due_by_batch[pending] = due
        if due < self._fires_at:
            self._arm(due)

    def _arm(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._fires_at = when
        self._timer = self._transport.call_at(when, self._fire)

    def _fire(self) -> None:
        self._timer, self._fires_at = None, float("inf")
        now = self._transport.now()
        due_by_batch, self._due_by_batch = self._due_by_batch, {}
        for pending, due in due_by_batch.items():
            if pending.is_answered:
                continue
            if due <= now:
                pending.mark_late()
            else:
                self._due_by_batch[pending] = due
        if self._due_by_batch:
            self._arm(min(self._due_by_batch.values()))
