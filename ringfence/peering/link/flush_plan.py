"""Time at which the queued requests of a link leave, so that many of them share a frame."""

from collections.abc import Callable

from ringfence.transport.interface import Timer, Transport

__all__ = ["FlushPlan"]


class FlushPlan:
    """Planned flush of one link: after the ready tasks, or when the frame interval ends."""

    def __init__(
        self, transport: Transport, frame_interval: float, flush: Callable[[], None]
    ) -> None:
        """`flush` sends the queued requests. For `frame_interval`, see `LinkSettings`."""
        self._transport = transport
        self._frame_interval = frame_interval
        self._flush = flush
        self._is_planned = False
        self._next_frame_at = float("-inf")
        """Time until which queued checks gather."""
        self._timer: Timer | None = None

    @property
    def gathers(self) -> bool:
        """Whether the last frame left less than the interval ago."""
        return self._transport.now() < self._next_frame_at

    def plan(self) -> None:
        """Flush after the tasks that are ready now, or later if checks gather."""
        if not self._is_planned:
            self._is_planned = True
            self._transport.call_soon(self._on_planned)

    def restart(self, now: float) -> None:
        """Begin to gather checks for the next frame, because the queued requests leave now."""
        self._next_frame_at = now + self._frame_interval
        self.cancel()

    def cancel(self) -> None:
        """Cancel the timer that ends the gathering."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_planned(self) -> None:
        self._is_planned = False
        if not self.gathers:
            self._flush()
        elif self._timer is None:
            self._timer = self._transport.call_at(self._next_frame_at, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._flush()
