"""Periodic sending of decision reports, and the last report when a client closes."""

from collections.abc import Callable, Sequence

from ringfence import runtime
from ringfence.client.local_cache.decision_reports import DecisionReports, ReportReceiver
from ringfence.transport.interface import Timer, Transport

__all__ = ["ReportLoop"]

_FINAL_TIMEOUT = 1.0
"""Maximum seconds that closing waits for the last reports."""


class ReportLoop:
    """Timer that sends a decision report at each interval."""

    def __init__(
        self,
        reports: DecisionReports,
        transport: Transport,
        interval: float,
        receivers: Callable[[], Sequence[ReportReceiver]],
        member_names: Callable[[], Sequence[str]],
    ) -> None:
        """`receivers` returns the nodes that answer now, `member_names` the names of all
        members."""
        self._reports = reports
        self._transport = transport
        self._interval = interval
        self._receivers = receivers
        self._member_names = member_names
        self._timer: Timer | None = None
        self._answered = runtime.Event()
        """Set when a report was answered, or cannot be."""
        self._was_counted = False
        """Whether a node has counted the last report."""

    def start(self) -> None:
        """Send a decision report now, and then one at each interval."""
        due = self._transport.now() + self._interval
        self._timer = self._transport.call_at(due, self.start)
        self._send()

    def stop(self) -> None:
        """Stop sending decision reports."""
        if self._timer is not None:
            self._timer.cancel()

    async def flush(self) -> None:
        """Report all decisions that were not reported yet, and wait a short time for the nodes'
        answers."""
        with runtime.move_on_after(_FINAL_TIMEOUT, shield=True):
            was_counted = True
            while was_counted and self._reports.has_any:
                self._answered = runtime.Event()
                self._send()
                if self._reports.is_in_flight:
                    await self._answered.wait()
                was_counted = self._was_counted

    def _send(self) -> None:
        self._was_counted = False
        self._reports.send(self._receivers(), self._member_names(), self._on_answer)

    def _on_answer(self, is_counted: bool) -> None:
        self._was_counted = is_counted
        self._answered.set()
