"""Reports of decisions that this process made: which node receives them, and retries.

One report is in flight at a time. A report without an answer may have been counted. So it is sent
again with the same number to the same node, while that node is a member. No I/O: nodes and time are
arguments.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

from ringfence.client.local_cache.decision_counts import Counted, DecisionCounts
from ringfence.wire import Done, Message, Report

__all__ = ["DecisionReports", "ReportReceiver"]

_GIVE_UP_AFTER = 30.0
"""Seconds without an answer after which another node gets the report. The report is counted
twice if the first node had counted it and only the answer was lost."""


class ReportReceiver(Protocol):
    """Interface of a node that can receive reports of the decisions that this process made."""

    @property
    def name(self) -> str:
        """Name of the node that receives the report."""

    def report(self, make: Callable[[int], Message], on_reply: Callable[[object], None]) -> None:
        """Send the message that `make` builds for a sequence number; pass the reply, or None, to
        the callback."""


class _Pending(Struct):
    number: int
    counted: Counted
    first_at: float
    node: str = ""
    """Name of the node that the report was sent to."""


class DecisionReports:
    """Sender of decision counts to nodes; it calls `collect`, which completes the counts, before
    each report."""

    def __init__(
        self,
        counts: DecisionCounts,
        client: int,
        collect: Callable[[], None],
        now: Callable[[], float],
    ) -> None:
        """`client` is a random number that identifies this process."""
        self._counts = counts
        self._client = client
        self._collect = collect
        self._now = now
        self._number = 0
        self._pending: _Pending | None = None
        self._preferred = ""
        self.is_in_flight = False
        """Whether a report was sent and not answered."""

    @property
    def has_any(self) -> bool:
        """Whether decisions wait to be reported, or a report waits for its answer."""
        self._collect()
        return self._pending is not None or bool(self._counts)

    def send(
        self,
        receivers: Sequence[ReportReceiver],
        member_names: Sequence[str],
        on_answer: Callable[[bool], None],
    ) -> bool:
        """Send one report if there are decisions to report; return whether one was sent.

        `receivers` are the nodes that answer now, `member_names` those of all current members.
        `on_answer` is called with whether the node has counted the report.
        """
        if self.is_in_flight:
            return False
        self._collect()
        if self._pending is None:
            counted = self._counts.take()
            if counted is None:
                return False
            self._number += 1
            self._pending = _Pending(self._number, counted, self._now())
        pending = self._pending
        node = self._choose(pending, receivers, member_names)
        if node is None:
            return False
        pending.node = self._preferred = node.name
        self.is_in_flight = True

        def on_reply(reply: object) -> None:
            self.is_in_flight = False
            is_counted = isinstance(reply, Done)
            if is_counted:
                self._pending = None
            on_answer(is_counted)

        node.report(lambda seq: _report(seq, self._client, pending), on_reply)
        return True

    def _choose(
        self,
        pending: _Pending,
        receivers: Sequence[ReportReceiver],
        member_names: Sequence[str],
    ) -> ReportReceiver | None:
        """Choose the receiver: the node that may already have counted this report, otherwise the
        receiver of the report before."""
        by_name = {node.name: node for node in receivers}
        if pending.node in by_name:
            return by_name[pending.node]
        must_wait = self._now() < pending.first_at + _GIVE_UP_AFTER
        if not receivers or (pending.node in member_names and must_wait):
            return None
        if self._preferred in by_name:
            return by_name[self._preferred]
        return receivers[self._client % len(receivers)]  # Spread the clients over the nodes.


def _report(seq: int, client: int, pending: _Pending) -> Report:
    rows = pending.counted.rows
    return Report(
        seq,
        client,
        pending.number,
        pending.counted.named,
        [key for (key, _, _), _ in rows],
        [code for (_, code, _), _ in rows],
        [source for (_, _, source), _ in rows],
        [count for _, count in rows],
    )
