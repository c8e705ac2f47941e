"""Send queue of one member: waiting batches and calls, and the frames made from them.

Decides which batches share a frame, its number and its deadline, and which of them have waited too
long. `frames_in_flight` decides what happens to a frame after it was sent.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeAlias

from msgspec import Struct

from ringfence.errors import LocalProtocolError
from ringfence.peering.coalescer import PendingBatch, new_pending_batch
from ringfence.peering.internal_errors import OnError
from ringfence.peering.link.frames_in_flight import Frame, FramesInFlight, OnReply, call_back
from ringfence.peering.link.outgoing import MAX_ROWS, QueuedBatch, coalesce, make_request
from ringfence.peering.link.queue_limit import QueueLimit
from ringfence.peering.link.settings import LinkSettings
from ringfence.peering.target import SHED, ResultCallback, Shed
from ringfence.wire import MAX_DEADLINE_MS, Batch, Message, Op, Ping, encode

__all__ = ["RequestQueue"]

logger = logging.getLogger("ringfence.client")

_LOGGED_EVERY = 10.0
"""Minimum seconds between two log records of requests that cannot be encoded."""
_REFUND_FRAMES = 32
"""Frames of refunds that may be in flight beyond `LinkSettings.max_frames`."""
_Send: TypeAlias = Callable[[bytes], None]


class _Call(Struct, frozen=True):
    make: Callable[[int], Message]
    on_reply: OnReply
    asked_at: float
    due: float


class RequestQueue:
    """Waiting batches and calls to one member; each caller is notified once, with an answer or
    without one."""

    def __init__(
        self,
        settings: LinkSettings,
        view: Callable[[], int],
        session: int,
        report: OnError,
        first_seq: int = 1,
    ) -> None:
        """`session` identifies the sender, so that the receiver can deduplicate its requests.

        `report` receives exceptions of callers' callbacks.
        """
        self._limit = QueueLimit(settings.max_waiting)
        self.in_flight = FramesInFlight(settings, self._limit, report)
        """Frames that wait for their answer."""
        self.pending_batch: PendingBatch | None = None
        """Batch that single checks join while it has room; it is part of the queue."""
        self.is_busy = False
        """Whether the last flush sent more than one check, so that more are likely to follow."""
        self._settings = settings
        self.session = session
        """Number that identifies the sender."""
        self._view = view
        self._report = report
        self._queue: deque[QueuedBatch] = deque()
        self._calls: deque[_Call] = deque()
        self.next_seq = first_seq
        """Sequence number of the next message."""
        self._unsent = 0
        """Checks and calls that could not be encoded since the last log record."""
        self._log_due = 0.0

    @property
    def has_batches(self) -> bool:
        """Whether there are batches that have not been sent."""
        return bool(self._queue)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is in the queue and nothing is in flight."""
        return not (self.in_flight.by_seq or self._queue or self._calls)

    def has_room(self, rows: int, op: Op = Op.CHECK) -> bool:
        """Return whether the given number of additional rows may wait for the member."""
        return self._limit.has_room(rows, is_refund=op is Op.REFUND)

    def add(
        self, batch: Batch, hops: int, as_standby: bool, on_results: ResultCallback, now: float
    ) -> QueuedBatch:
        """Add a batch of checks to the queue."""
        queued = QueuedBatch(batch, hops, as_standby, on_results, now, self._withdraw)
        self._limit.waiting += len(batch)
        self._queue.append(queued)
        return queued

    def add_call(
        self, make: Callable[[int], Message], on_reply: OnReply, now: float, timeout: float
    ) -> None:
        """Add a call to the queue; `make` builds its message for a sequence number."""
        self._calls.append(_Call(make, on_reply, now, now + timeout))

    def open_pending_batch(self, now: float) -> PendingBatch | None:
        """Add an empty batch that single checks can join; None when no more checks may wait."""
        self._close_pending_batch()
        limit = self._limit
        room = min(MAX_ROWS, limit.rows - limit.waiting)
        if room < 1:
            return None
        limit.waiting += (
            room  # The whole capacity of the batch counts as used until the batch is closed.
        )
        self.pending_batch = pending = new_pending_batch(now, room)
        pending.sent = QueuedBatch(
            pending.batch, 0, False, pending.resolve, now, self._withdraw, pending.resolve_rows
        )
        self._queue.append(pending.sent)
        return pending

    def _close_pending_batch(self) -> None:
        pending = self.pending_batch
        if pending is not None:
            self._limit.waiting -= pending.room - len(pending.keys)
            self.pending_batch = None

    def _withdraw(self, queued: QueuedBatch) -> None:
        """Remove a batch from the queue, because another member is asked instead."""
        if queued in self._queue:
            self._queue.remove(queued)
            self._fail([queued])

    # -- sending -------------------------------------------------------------------------------

    def flush(self, now: float, send: _Send) -> None:
        """Send waiting batches and calls, while fewer than `LinkSettings.max_frames` frames are in
        flight; refunds may exceed this number a little."""
        while self._calls:
            self._send_call(self._calls.popleft(), send)
        if self._queue:
            pending = self.pending_batch
            self.is_busy = len(self._queue) > 1 or (pending is not None and len(pending.keys) > 1)
            self._close_pending_batch()
        while self._queue and self._may_send(self._queue[0].batch.op):
            self._send_batches(coalesce(self._queue), now, send)

    def _may_send(self, op: Op) -> bool:
        reserve = _REFUND_FRAMES if op is Op.REFUND else 0
        return len(self.in_flight.by_seq) < self._settings.max_frames + reserve

    def ping(self, now: float, send: _Send) -> int:
        """Send a ping, to find out whether the member is alive; return its number.

        It expires after two time-outs. Without a deadline callers can wait for a busy member, so
        the ping waits as long as they do: a late answer can still be refunded.
        """
        seq, timeout = self.take_seq(), self.in_flight.answer_timeout
        within = 2 * timeout
        if self._settings.deadline is None:
            within = max(within, self._settings.slow_timeout - timeout)
        self._send(seq, Frame(encode(Ping(seq)), now, now + within), send)
        return seq

    def _send_call(self, call: _Call, send: _Send) -> None:
        seq = self.take_seq()
        try:
            payload = encode(call.make(seq))
        except LocalProtocolError as error:
            self._log_unsent(1, error, call.asked_at)
            call_back(call.on_reply, None, self._report)
        except Exception as error:  # noqa: BLE001 - an error of the caller's own `make`.
            self._report(error)
            call_back(call.on_reply, None, self._report)
        else:
            self._send(seq, Frame(payload, call.asked_at, call.due, on_reply=call.on_reply), send)

    def _send_batches(self, together: list[QueuedBatch], now: float, send: _Send) -> None:
        settings = self._settings
        longest_wait = settings.slow_timeout
        if settings.deadline is not None:
            longest_wait = settings.deadline
            if together[0].batch.op is Op.CHECK:
                while together and together[0].asked_at + longest_wait <= now:
                    self._fail([together.pop(0)], SHED)  # Its caller no longer waits.
                if not together:
                    return
        seq = self.take_seq()
        left = together[-1].asked_at + longest_wait - now
        if together[0].batch.op is Op.REFUND:
            left = longest_wait  # It may have waited longer, see `expire`.
        deadline_ms = max(1, min(MAX_DEADLINE_MS, round(left * 1000)))
        try:
            payload = encode(make_request(together, seq, self._view(), deadline_ms))
        except LocalProtocolError as error:
            # Bad input of one caller must not end the task that serves all checks.
            if len(together) > 1:
                for each in together:  # One of them is invalid; send each one separately.
                    self._send_batches([each], now, send)
                return
            self._log_unsent(len(together[0].batch), error, now)
            self._fail(together)
        else:
            due = now + self.in_flight.answer_timeout
            row = 0
            for queued in together:
                queued.id = self.session, seq, row
                row += len(queued.batch)
            self._send(seq, Frame(payload, now, due, together), send)

    def _log_unsent(self, count: int, error: LocalProtocolError, now: float) -> None:
        """Log checks or calls that cannot be encoded, and the number of those since the last
        record."""
        self._unsent += count
        if now >= self._log_due:
            logger.error("checks or calls not sent: count=%d error=%s", self._unsent, error)
            self._unsent, self._log_due = 0, now + _LOGGED_EVERY

    def _send(self, seq: int, frame: Frame, send: _Send) -> None:
        self.in_flight.by_seq[seq] = frame
        send(frame.payload)

    def take_seq(self) -> int:
        """Return a new sequence number, for the next message to the member."""
        seq = self.next_seq
        self.next_seq += 1
        return seq

    # -- waiting -------------------------------------------------------------------------------

    def waits_since(self, received_at: float) -> float | None:
        """Return the time since which requests wait for a message of the member; None without
        requests.

        `received_at` is the time of the last message of the member.
        """
        since = self.in_flight.sent_since(received_at)
        if self._queue:
            since.append(self._queue[0].asked_at)
        return max(min(since), received_at) if since else None

    def first_due(self) -> float:
        """Return when the first batch, call or frame expires; infinity when nothing waits."""
        first = self.in_flight.first_due()
        if self._calls:
            first = min(first, *[call.due for call in self._calls])
        return min(first, self._due(self._queue[0])) if self._queue else first

    def expire(
        self, now: float, received_at: float, *, is_draining: bool = False, can_send: bool = False
    ) -> list[Frame]:
        """Fail expired batches, calls and frames; return the frames which show that the member is
        silent.

        With `can_send`, this process is overloaded if it has not sent a batch in time: its checks
        are shed. The caller must then send its refunds by `flush`. See `FramesInFlight.expire`.
        """
        refunds = list[QueuedBatch]()
        while self._queue and self._due(self._queue[0]) <= now:
            queued = self._queue.popleft()
            op = queued.batch.op
            is_full = not self._may_send(op)
            if op is Op.REFUND and can_send and not is_full:
                refunds.append(queued)
            else:
                is_shed = is_full or (can_send and op is Op.CHECK)
                self._fail([queued], SHED if is_shed else None)
        self._queue.extendleft(reversed(refunds))
        late = [call for call in self._calls if call.due <= now]
        if late:
            self._calls = deque(call for call in self._calls if call.due > now)
        for call in late:
            call_back(call.on_reply, None, self._report)
        return self.in_flight.expire(now, received_at, is_draining=is_draining)

    def fail_unsent(self) -> None:
        """Fail the batches and calls that have not been sent yet."""
        queue, self._queue = self._queue, deque()
        calls, self._calls = self._calls, deque()
        self._fail(queue)
        for call in calls:
            call_back(call.on_reply, None, self._report)

    def fail_all(self) -> None:
        """Fail all batches, calls and frames, sent or not."""
        self.in_flight.fail_all()
        self.fail_unsent()

    def _fail(self, batches: Iterable[QueuedBatch], answer: Shed | None = None) -> None:
        self._close_pending_batch()  # The pending batch may be one of `batches`.
        self.in_flight.fail_batches(batches, answer)

    def _due(self, queued: QueuedBatch) -> float:
        return queued.asked_at + self._settings.answer_timeout
