"""Time at which the queued requests of a link leave, so that many of them share a frame."""

from collections.abc import Callable

from ringfence.peering.link.frames_in_flight import FramesInFlight
from ringfence.transport.interface import Timer, Transport

__all__ = ["FlushPlan"]


class FlushPlan:
    """Planned flush of one link: after the ready tasks, or when the gathering of checks ends."""

    def __init__(
        self,
        transport: Transport,
        in_flight: FramesInFlight,
        max_gather: float,
        flush: Callable[[], None],
    ) -> None:
        """`flush` sends the queued requests. For `max_gather`, see `LinkSettings`."""
        self._transport = transport
        self._in_flight = in_flight
        self._max_gather = max_gather
        self._flush = flush
        self._is_planned = False
        self._gather_until = float("-inf")
        """Time until which queued checks wait for the answer to the frame in flight."""
        self._timer: Timer | None = None

    def plan(self) -> None:
        """Flush after the tasks that are ready now, or later if checks gather."""
        if not self._is_planned:
            self._is_planned = True
            self._transport.call_soon(self._on_planned)

    def restart(self, now: float) -> None:
        """Begin to gather checks for the next frame, because the queued requests leave now."""
        self._gather_until = now + self._max_gather
        self.cancel()

    def cancel(self) -> None:
        """Cancel the timer that ends the gathering."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_planned(self) -> None:
        self._is_planned = False
        if not self._in_flight.by_seq or self._transport.now() >= self._gather_until:
            self._flush()
        elif self._timer is None:
            self._timer = self._transport.call_at(self._gather_until, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._flush()
