"""Frames that were sent to one member and wait for their answer.

Decides which caller receives an answer, and which frames have waited too long. `request_queue`
decides what a frame contains and when it is sent.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import TypeAlias, TypeVar

from msgspec import Struct, field

from ringfence.errors import AccessDenied, RemoteProtocolError
from ringfence.peering.internal_errors import OnError
from ringfence.peering.link.outgoing import QueuedBatch
from ringfence.peering.link.partial_answers import PartialAnswers
from ringfence.peering.link.queue_limit import QueueLimit
from ringfence.peering.link.round_trips import RoundTrips
from ringfence.peering.link.settings import LinkSettings
from ringfence.peering.target import SHED, Shed
from ringfence.wire import (
    Answer,
    Batch,
    DigestMismatch,
    Done,
    Exchanged,
    LeaseGrant,
    Members,
    Peers,
    Pong,
    Pulled,
    RecoverCountsReply,
    Results,
    Rules,
    Stats,
    TakenOver,
    Throttled,
)

__all__ = ["REPLIES", "Frame", "FramesInFlight", "OnReply", "OnResults", "Reply", "call_back"]

Reply: TypeAlias = (
    Members
    | Rules
    | Stats
    | Pong
    | Exchanged
    | Pulled
    | DigestMismatch
    | RecoverCountsReply
    | Peers
    | Done
    | LeaseGrant
    | TakenOver
    | Throttled
)
"""Messages that answer a call."""
REPLIES = (
    *(Members, Rules, Stats, Pong, Exchanged, Pulled, DigestMismatch, RecoverCountsReply),
    *(Peers, Done, LeaseGrant, TakenOver, Throttled),
)

OnReply: TypeAlias = Callable[[Reply | None], None]
"""Receives the reply to a call, or None when there is none."""
OnResults: TypeAlias = Callable[[Batch, Results, float], None]
"""Receives a batch, its results and the time at which the batch was asked."""

_T = TypeVar("_T")


class Frame(Struct):
    """Frame that was sent, with the callers that wait for its answer."""

    payload: bytes
    sent_at: float
    due: float
    """Time at which the frame expires."""
    batches: list[QueuedBatch] = field(default_factory=list)
    on_reply: OnReply | None = None
    is_measured: bool = False
    """Whether the frame must give no further round-trip sample: it has given one, or it was sent
    twice, so that the answer may be to either copy."""
    is_overdue: bool = False
    """Whether the member was silent for a whole time-out since the frame was sent."""
    parts: PartialAnswers | None = None
    """Rows that were answered before others; None when there are none."""


class FramesInFlight:
    """Unanswered frames of one link, by number; each batch and each call gets one answer."""

    def __init__(self, settings: LinkSettings, limit: QueueLimit, report: OnError) -> None:
        """`report` receives exceptions of callers' callbacks."""
        self.by_seq: dict[int, Frame] = {}
        """Frames without an answer, in the order in which they were sent."""
        self.round_trips = RoundTrips()
        """Time from asking to being answered, of checks."""
        self._expired: dict[int, Frame] = {}
        """Frames that expired and may still be answered, the oldest first."""
        self._settings = settings
        self._limit = limit
        self._report = report

    @property
    def answer_timeout(self) -> float:
        """Seconds of silence after which the member is pinged."""
        settings = self._settings
        return self.round_trips.timeout(settings.answer_timeout_margin, settings.answer_timeout)

    def send_again(self, send: Callable[[bytes], None]) -> None:
        """Send all unanswered frames again, with the same numbers."""
        for frame in self.by_seq.values():
            frame.is_measured = True
            send(frame.payload)

    def first_due(self) -> float:
        """Return the time at which the first unanswered frame expires; infinity without frames."""
        return min([frame.due for frame in self.by_seq.values()], default=float("inf"))

    def sent_since(self, received_at: float) -> list[float]:
        """Return the times of sending of frames that the member has not answered.

        Expired frames count only if they were sent after `received_at`, the time of the last
        message of the member. Of the frames in flight, only the oldest counts.
        """
        sent = [each.sent_at for each in self._expired.values() if each.sent_at > received_at]
        return sent + [each.sent_at for each in islice(self.by_seq.values(), 1)]

    # -- answers -------------------------------------------------------------------------------

    def measure(self, seq: int, now: float) -> None:
        """Take a round-trip sample from an answer that has just arrived, even if it is late.

        Answers of a standby give no sample: it may have waited for the owner.
        """
        frame = self.by_seq.get(seq) or self._expired.get(seq)
        if frame is not None and frame.batches and not frame.is_measured:
            frame.is_measured = True
            if not frame.batches[0].as_standby:
                took = now - frame.batches[0].asked_at
                self.round_trips.sample(took)
                deadline = self._settings.deadline
                if deadline is not None:
                    rows = sum([len(each.batch) for each in frame.batches])
                    self._limit.adapt(took / deadline, rows, frame.sent_at, now)

    def answer(self, answer: Answer, on_results: OnResults | None = None) -> bool:
        """Pass an answer to the callers of its frame; return whether the frame was in flight.

        `on_results` is called before the callers. Raises `RemoteProtocolError` when the answer does
        not match the frame.
        """
        frame = self.by_seq.pop(answer.seq, None)
        if frame is None:
            return False
        if answer.rows is not None or frame.parts is not None:
            self._answer_rows(frame, answer, on_results)
            return True
        rows = sum([len(each.batch) for each in frame.batches])
        if len(answer.results.outcomes) != rows or not rows:
            self.fail(frame)
            raise RemoteProtocolError(
                f"answer must have {rows} rows, got {len(answer.results.outcomes)}"
            )
        results = answer.results
        self._limit.waiting -= rows
        start = 0
        for each in frame.batches:
            stop = start + len(each.batch)
            part = results if len(frame.batches) == 1 else results.slice(start, stop)
            if on_results is not None:
                call_back(partial(on_results, each.batch, part), each.asked_at, self._report)
            call_back(each.on_results, part, self._report)
            each.drop_callbacks()
            start = stop
        return True

    def _answer_rows(self, frame: Frame, answer: Answer, on_results: OnResults | None) -> None:
        """Pass a partial answer to the callers whose checks it answers; the frame waits for the
        other answers.

        Raises `RemoteProtocolError` when the answer does not match the frame.
        """
        rows = _rows_of(frame, answer)
        if rows is None:
            self.fail(frame)
            raise RemoteProtocolError(
                f"rows of an answer must be rows of its request, got {answer.rows}"
            )
        if frame.parts is None:
            frame.parts = PartialAnswers(frame.batches)
        new = frame.parts.take(rows, answer.results)
        if not frame.parts.is_complete:
            self.by_seq[answer.seq] = frame
        for part in new:
            queued, complete = part.queued, frame.parts.complete(part.queued)
            if complete is not None:
                self._limit.waiting -= len(queued.batch)
            if queued.on_rows is not None:
                if on_results is not None:
                    taken = queued.batch.take(part.rows)
                    call_back(
                        partial(on_results, taken, part.results), queued.asked_at, self._report
                    )
                call_back(partial(queued.on_rows, part.rows), part.results, self._report)
            elif complete is not None:
                if on_results is not None:
                    call_back(
                        partial(on_results, queued.batch, complete), queued.asked_at, self._report
                    )
                call_back(queued.on_results, complete, self._report)

    def answer_late(self, answer: Answer) -> None:
        """Pass on the answer to an expired frame, because its checks may have been charged."""
        frame = self._expired.get(answer.seq)
        rows = None if frame is None else _rows_of(frame, answer)
        if frame is None or rows is None:
            return
        if frame.parts is None:
            frame.parts = PartialAnswers(frame.batches)
        for part in frame.parts.take(rows, answer.results):
            complete = frame.parts.complete(part.queued)
            if part.queued.on_rows is not None:
                call_back(partial(part.queued.on_rows, part.rows), part.results, self._report)
            elif complete is not None:
                call_back(part.queued.on_results, complete, self._report)
        if frame.parts.is_complete:
            del self._expired[answer.seq]

    def reply(self, reply: Reply) -> bool:
        """Pass a reply to the caller that waits for it; return whether such a call was in flight.

        Raises `RemoteProtocolError` when the frame was not a call.
        """
        frame = self.by_seq.pop(reply.seq, None)
        if frame is None:
            return False
        if frame.batches:
            self.fail(frame)
            raise RemoteProtocolError(
                f"answer to a request must be an Answer, got {type(reply).__name__}"
            )
        if frame.on_reply is not None:
            call_back(frame.on_reply, reply, self._report)
        return True

    # -- failures ------------------------------------------------------------------------------

    def expire(self, now: float, received_at: float, *, is_draining: bool) -> list[Frame]:
        """Fail the frames that were not answered in time; return the frames which show that the
        member is silent.

        `received_at` is the time of the last message of the member. While messages arrive, the
        member is busy, and frames wait longer: see `LinkSettings.slow_timeout`. When it is silent,
        overdue frames are returned immediately and fail one time-out later, so that a ping can be
        answered first. With `is_draining` nothing more is sent to the member, not even a ping.
        """
        timeout, silent = self.answer_timeout, list[Frame]()
        silent_at = received_at + timeout
        is_busy = silent_at > now
        for frame in self.by_seq.values():
            latest = frame.sent_at + self._settings.slow_timeout
            if frame.due > now or not frame.batches or latest <= now:
                continue
            if is_busy:
                frame.due = max(frame.due, min(silent_at, latest))
                frame.is_overdue = False
            elif is_draining:
                frame.due = max(frame.due, frame.sent_at + self._settings.answer_timeout)
            elif not frame.is_overdue:
                frame.due = min(now + timeout, latest)
                frame.is_overdue = True
                silent.append(frame)
        expired = [seq for seq, frame in self.by_seq.items() if frame.due <= now]
        frames = [self.by_seq.pop(seq) for seq in expired]
        for seq, frame in zip(expired, frames, strict=True):
            self.fail(frame, SHED if is_busy and not is_draining else None)
            self._expect_late(seq, frame)
        if any(frame.batches for frame in frames):
            self.round_trips.expire()
        return [] if is_busy else [*silent, *frames]

    def refuse(self, seq: int) -> None:
        """Fail a frame that the member refused; checks in progress may still be answered later."""
        frame = self.by_seq.pop(seq)
        self.fail(frame)
        if frame.parts is not None:
            self._expect_late(seq, frame)

    def _expect_late(self, seq: int, frame: Frame) -> None:
        self._expired[seq] = frame
        if len(self._expired) > self._settings.max_frames:
            del self._expired[next(iter(self._expired))]

    def fail_calls(self) -> None:
        """Fail all calls in flight, because the member does not support the message of one of
        them."""
        for seq in [seq for seq, frame in self.by_seq.items() if frame.on_reply is not None]:
            self.fail(self.by_seq.pop(seq))

    def fail_all(self) -> None:
        """Fail all frames in flight."""
        frames, self.by_seq = self.by_seq, {}
        for frame in frames.values():
            self.fail(frame)

    def fail(self, frame: Frame, answer: AccessDenied | Shed | None = None) -> None:
        """Pass `answer`, a refusal or None, instead of results to the callers of a frame that
        has failed."""
        parts = frame.parts
        batches = frame.batches if parts is None else parts.incomplete()
        self.fail_batches(batches, answer)
        if frame.on_reply is not None:
            call_back(frame.on_reply, None, self._report)

    def fail_batches(
        self, batches: Iterable[QueuedBatch], answer: AccessDenied | Shed | None = None
    ) -> None:
        """Pass `answer`, a refusal or None, instead of results to the callers of batches that
        have failed."""
        for each in batches:
            self._limit.waiting -= len(each.batch)
            call_back(each.on_results, answer, self._report)


def call_back(callback: Callable[[_T], object], answer: _T, report: OnError) -> None:
    """Call the callback of one caller; its exception must not affect other callers."""
    try:
        callback(answer)
    except Exception as error:  # noqa: BLE001
        report(error)


def _rows_of(frame: Frame, answer: Answer) -> Sequence[int] | None:
    """Return which rows of a frame an answer contains; None when the answer does not match the
    frame."""
    count = sum([len(each.batch) for each in frame.batches])
    rows = range(count) if answer.rows is None else answer.rows
    fits = count and len(answer.results.outcomes) == len(rows) and rows[-1] < count
    return rows if fits else None
