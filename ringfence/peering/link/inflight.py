"""What is under way to one member: what waits to leave, and the frames that wait for an answer.

Decides what leaves together and under which number, whom an answer is for, and who has waited too
long. The connection that frames leave on, and what silence says of the member, are `link`'s.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TypeAlias, TypeVar

from ringfence.errors import AccessDenied, LocalProtocolError, RemoteProtocolError
from ringfence.peering.coalescer import PendingBatch, new_pending_batch
from ringfence.peering.columns import SHED, Batch, Results, Shed
from ringfence.peering.columns import Done as OnDone
from ringfence.peering.internal_errors import OnError
from ringfence.peering.link.outgoing import MOST_ROWS, Ask, request_of, take_together
from ringfence.peering.link.partial_answers import Parts
from ringfence.peering.link.round_trips import RoundTrips
from ringfence.peering.link.settings import LinkSettings
from ringfence.wire import (
    MAX_DEADLINE_MS,
    Answer,
    DigestMismatch,
    Done,
    Exchanged,
    LeaseGrant,
    Members,
    Message,
    Op,
    Peers,
    Ping,
    Pong,
    Pulled,
    RecoverCountsReply,
    Rules,
    Stats,
    TakenOver,
    Throttled,
    encode,
)

__all__ = ["RequestQueue", "Frame", "Learn", "REPLIES", "Reply"]

logger = logging.getLogger("ringfence.client")

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
"""What answers a call."""
REPLIES = (
    *(
        Members,
        Rules,
        Stats,
        Pong,
        Exchanged,
        Pulled,
        DigestMismatch,
        RecoverCountsReply,
        Peers,
        Done,
        LeaseGrant,
    ),
    *(TakenOver, Throttled),
)

Learn: TypeAlias = Callable[[Batch, Results, float], None]
"""Told of a batch, what became of it, and when it was asked."""

_T = TypeVar("_T")
_Send: TypeAlias = Callable[[bytes], None]
_NEAR = 0.75
"""Part of the deadline: when an answer takes longer, too many checks wait."""
_LEAST_ROOM = 64


@dataclass(slots=True)
class Frame:
    """Bytes that were sent, and who waits for what answers them."""

    payload: bytes
    sent_at: float
    due: float
    """When it is given up."""
    asks: list[Ask] = field(default_factory=list)
    on_reply: Callable[[Reply | None], None] | None = None
    is_measured: bool = False
    """Whether it gives no round-trip sample: it has given one, or was sent again, so that the
    answer may be to either."""
    is_doubted: bool = False
    """Whether it still waits after the member was silent for a whole time-out."""
    parts: Parts | None = None
    """The rows that were answered before others; None as long as there are none."""


@dataclass(frozen=True, slots=True)
class _Call:
    make: Callable[[int], Message]
    on_reply: Callable[[Reply | None], None]
    asked_at: float
    due: float


class RequestQueue:
    """Asks and calls to one member. Each is told once: an answer, or that there is none."""

    def __init__(
        self, settings: LinkSettings, view: Callable[[], int], session: int, report: OnError
    ) -> None:
        """`session` is the sender's, under which the receiver deduplicates its requests.

        `report` receives what callers' callbacks raise; it keeps no other caller waiting.
        """
        self.frames: dict[int, Frame] = {}
        """Frames without an answer, by number, in the order in which they left."""
        self._given_up: dict[int, Frame] = {}
        """Frames that were given up and may be answered all the same, the oldest first."""
        self.round_trips = RoundTrips()
        """From asking to being answered, of checks."""
        self._settings = settings
        self._session = session
        self._view = view
        self._report = report
        self._outbox: deque[Ask] = deque()
        self._calls: deque[_Call] = deque()
        self._waiting_keys = 0
        self._room = settings.max_waiting
        """Most checks that may wait; fewer while answers come close to the deadline."""
        self._cut_at = float("-inf")
        self._next_seq = 1
        self.crowd: PendingBatch | None = None
        """Where lone checks join, as long as there is room; it waits in the outbox."""
        self.is_busy = False
        """Whether what left last was more than one check, so that others will follow soon."""

    @property
    def answer_timeout(self) -> float:
        """Seconds of silence after which the member is doubted."""
        settings = self._settings
        return self.round_trips.timeout(settings.answer_timeout_least, settings.answer_timeout)

    @property
    def has_asks_waiting(self) -> bool:
        """Whether there are asks that have not left."""
        return bool(self._outbox)

    @property
    def is_empty(self) -> bool:
        """Whether nobody waits for anything."""
        return not (self.frames or self._outbox or self._calls)

    def has_room(self, rows: int) -> bool:
        """Whether so many more keys may wait."""
        return self._waiting_keys + rows <= self._room

    def add(self, batch: Batch, hops: int, stand_in: bool, done: OnDone, now: float) -> Ask:
        """Add a batch to the outbox."""
        ask = Ask(batch, hops, stand_in, done, now, self._withdraw)
        self._waiting_keys += len(batch)
        self._outbox.append(ask)
        return ask

    def _withdraw(self, ask: Ask) -> None:
        """Remove an ask from the outbox: its checks are asked of another member."""
        if ask in self._outbox:
            self._outbox.remove(ask)
            self._give_up_asks([ask])

    def open_crowd(self, now: float) -> PendingBatch | None:
        """Let lone checks join each other from now on; None when no more may wait."""
        self._close_crowd()
        room = min(MOST_ROWS, self._room - self._waiting_keys)
        if room < 1:
            return None
        self._waiting_keys += room  # As if all of it were taken, until it closes.
        self.crowd = crowd = new_pending_batch(now, room)
        crowd.asked = Ask(
            crowd.batch, 0, False, crowd.resolve, now, self._withdraw, crowd.resolve_rows
        )
        self._outbox.append(crowd.asked)
        return crowd

    def _close_crowd(self) -> None:
        """Nobody may join any more."""
        if self.crowd is not None:
            self._waiting_keys -= self.crowd.room - len(self.crowd.keys)
            self.crowd = None

    def add_call(
        self,
        make: Callable[[int], Message],
        on_reply: Callable[[Reply | None], None],
        now: float,
        timeout: float,
    ) -> None:
        """Let a call wait for its departure."""
        self._calls.append(_Call(make, on_reply, now, now + timeout))

    # -- leaving -------------------------------------------------------------------------------

    def depart(self, now: float, send: _Send) -> None:
        """Send what waits, as far as there is room for more frames."""
        while self._calls:
            self._send_call(self._calls.popleft(), send)
        if self._outbox:
            crowd = self.crowd
            self.is_busy = len(self._outbox) > 1 or (crowd is not None and len(crowd.keys) > 1)
            self._close_crowd()
        while self._outbox and len(self.frames) < self._settings.max_frames:
            self._send_asks(take_together(self._outbox), now, send)

    def send_again(self, send: _Send) -> None:
        """Send all frames under the numbers that they have."""
        for frame in self.frames.values():
            frame.is_measured = True
            send(frame.payload)

    def ping(self, now: float, send: _Send) -> int:
        """Send a question that costs nothing, for a sign of life; returns its number.

        It has twice the usual time. Callers without a deadline can wait, so there the connection is
        kept for as long as a busy member is waited for: a late answer can still be taken back.
        """
        seq, timeout = self.take_seq(), self.answer_timeout
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
            logger.error("a question cannot be sent: %s", error)
            self._tell(call.on_reply, None)
        except Exception as error:  # noqa: BLE001 - the caller's, who waits for a reply.
            self._report(error)
            self._tell(call.on_reply, None)
        else:
            self._send(seq, Frame(payload, call.asked_at, call.due, on_reply=call.on_reply), send)

    def _send_asks(self, together: list[Ask], now: float, send: _Send) -> None:
        settings = self._settings
        patience = settings.slow_timeout
        if settings.deadline is not None:
            patience = settings.deadline
            if together[0].batch.op is Op.CHECK:
                while together and together[0].asked_at + patience <= now:
                    self._give_up_asks([together.pop(0)], SHED)  # Its caller has given up.
                if not together:
                    return
        seq = self.take_seq()
        left = together[-1].asked_at + patience - now
        deadline_ms = max(1, min(MAX_DEADLINE_MS, round(left * 1000)))
        try:
            payload = encode(request_of(together, seq, self._view(), deadline_ms))
        except LocalProtocolError as error:
            # Nothing an application passes may end the task that serves all its checks.
            if len(together) > 1:
                for each in together:  # Only one of them can be at fault.
                    self._send_asks([each], now, send)
                return
            logger.error("%d checks cannot be sent: %s", len(together[0].batch), error)
            self._give_up_asks(together)
        else:
            due = now + self.answer_timeout
            row = 0
            for ask in together:
                ask.id = self._session, seq, row
                row += len(ask.batch)
            self._send(seq, Frame(payload, now, due, together), send)

    def _send(self, seq: int, frame: Frame, send: _Send) -> None:
        self.frames[seq] = frame
        send(frame.payload)

    def take_seq(self) -> int:
        """Number the next message."""
        seq = self._next_seq
        self._next_seq += 1
        return seq

    def asked_since(self, heard_at: float) -> float | None:
        """Return since when this side waits for any sign of the member; None when it does not.

        `heard_at` is when the member last said something.
        """
        since = [each.sent_at for each in self._given_up.values() if each.sent_at > heard_at]
        since += [each.sent_at for each in islice(self.frames.values(), 1)]
        since += [each.asked_at for each in islice(self._outbox, 1)]
        return max(min(since), heard_at) if since else None

    # -- being answered ------------------------------------------------------------------------

    def measure(self, seq: int, now: float) -> None:
        """Take a round-trip sample from an answer that has just arrived, however late.

        Answers of a standby give none: it may have waited for the owner.
        """
        frame = self.frames.get(seq) or self._given_up.get(seq)
        if frame is not None and frame.asks and not frame.is_measured:
            frame.is_measured = True
            if not frame.asks[0].stand_in:
                took = now - frame.asks[0].asked_at
                self.round_trips.sample(took)
                if self._settings.deadline is not None:
                    self._fit_room(frame, took / self._settings.deadline, now)

    def _fit_room(self, frame: Frame, share: float, now: float) -> None:
        """Let fewer checks wait when an answer took most of the deadline, else more.

        Multiplicative decrease, once per round trip as in TCP: what is in flight then tells of the
        time before. More than the deadline's worth of checks would be answered too late, all of
        them; those beyond it are shed at once.
        """
        if share <= _NEAR:
            rows = sum([len(ask.batch) for ask in frame.asks])
            self._room = min(self._settings.max_waiting, self._room + 1 + rows // 2)
        elif frame.sent_at > self._cut_at:
            self._cut_at = now
            self._room = max(_LEAST_ROOM, min(self._room, self._waiting_keys) * 3 // 4)

    def answer(self, answer: Answer, learn: Learn | None = None) -> bool:
        """Tell those who asked, and before them `learn`; whether anybody had asked.

        Raises `RemoteProtocolError` when it is no answer to what was asked.
        """
        frame = self.frames.pop(answer.seq, None)
        if frame is None:
            return False
        if answer.rows is not None or frame.parts is not None:
            self._answer_rows(frame, answer, learn)
            return True
        rows = sum([len(ask.batch) for ask in frame.asks])
        if len(answer.outcomes) != rows or not rows:
            self.give_up(frame)
            raise RemoteProtocolError(f"asked {rows} checks, was answered {len(answer.outcomes)}")
        verdicts = Results(answer.outcomes, answer.sources)
        self._waiting_keys -= rows
        start = 0
        for ask in frame.asks:
            stop = start + len(ask.batch)
            part = verdicts if len(frame.asks) == 1 else verdicts.slice(start, stop)
            if learn is not None:
                self._tell(partial(learn, ask.batch, part), ask.asked_at)
            self._tell(ask.done, part)
            start = stop
        return True

    def _answer_rows(self, frame: Frame, answer: Answer, learn: Learn | None) -> None:
        """Pass the rows of an answer to their callers; the frame waits for the other rows.

        Raises `RemoteProtocolError` when it is no answer to what was asked.
        """
        rows = _rows_of(frame, answer)
        if rows is None:
            self.give_up(frame)
            raise RemoteProtocolError(f"an answer to {len(answer.outcomes)} rows not asked for")
        if frame.parts is None:
            frame.parts = Parts(frame.asks)
        new = frame.parts.take(rows, Results(answer.outcomes, answer.sources))
        if not frame.parts.is_whole:
            self.frames[answer.seq] = frame
        for each in new:
            ask, whole = each.ask, frame.parts.whole(each.ask)
            if whole is not None:
                self._waiting_keys -= len(ask.batch)
            if ask.on_rows is not None:
                if learn is not None:
                    taken = ask.batch.take(each.rows)
                    self._tell(partial(learn, taken, each.verdicts), ask.asked_at)
                self._tell(partial(ask.on_rows, each.rows), each.verdicts)
            elif whole is not None:
                if learn is not None:
                    self._tell(partial(learn, ask.batch, whole), ask.asked_at)
                self._tell(ask.done, whole)

    def answer_late(self, answer: Answer) -> None:
        """Pass on an answer that came after its frame was given up: its checks may be charged."""
        frame = self._given_up.get(answer.seq)
        rows = None if frame is None else _rows_of(frame, answer)
        if frame is None or rows is None:
            return
        if frame.parts is None:
            frame.parts = Parts(frame.asks)
        for each in frame.parts.take(rows, Results(answer.outcomes, answer.sources)):
            whole = frame.parts.whole(each.ask)
            if each.ask.on_rows is not None:
                self._tell(partial(each.ask.on_rows, each.rows), each.verdicts)
            elif whole is not None:
                self._tell(each.ask.done, whole)
        if frame.parts.is_whole:
            del self._given_up[answer.seq]

    def reply(self, reply: Reply) -> bool:
        """Tell who called; whether anybody had.

        Raises `RemoteProtocolError` when it is no answer to what was asked.
        """
        frame = self.frames.pop(reply.seq, None)
        if frame is None:
            return False
        if frame.asks:
            self.give_up(frame)
            raise RemoteProtocolError(f"a request was answered by a {type(reply).__name__}")
        if frame.on_reply is not None:
            self._tell(frame.on_reply, reply)
        return True

    def deny(self, frame: Frame, error: AccessDenied) -> None:
        """Tell those who asked that they may not."""
        parts = frame.parts
        asks = frame.asks if parts is None else [each.ask for each in parts.unfinished()]
        for ask in asks:
            self._waiting_keys -= len(ask.batch)
            self._tell(ask.done, error)

    # -- giving up -----------------------------------------------------------------------------

    def first_due(self) -> float:
        """When the first of all that is under way is given up; never, when nothing is."""
        dues = [frame.due for frame in self.frames.values()]
        dues += [call.due for call in self._calls]
        dues += [self._due(self._outbox[0])] if self._outbox else []
        return min(dues, default=float("inf"))

    def give_up_late(self, now: float, heard_at: float, *, is_last: bool = False) -> list[Frame]:
        """Give up what is due; returns the frames that the member was silent about for too long.

        `heard_at` is when the member last said something: while it does, frames that it has are
        waited for longer, see `LinkSettings.slow_timeout`. When it is silent, they are returned
        first and given up a time-out later: until then the caller can settle the doubt. With
        `is_last` the member is asked nothing more, not even for a sign of life.
        """
        while self._outbox and self._due(self._outbox[0]) <= now:
            is_full = len(self.frames) >= self._settings.max_frames
            self._give_up_asks([self._outbox.popleft()], SHED if is_full else None)
        late = [call for call in self._calls if call.due <= now]
        if late:
            self._calls = deque(call for call in self._calls if call.due > now)
        for call in late:
            self._tell(call.on_reply, None)
        timeout, silent = self.answer_timeout, list[Frame]()
        is_busy = heard_at > now - timeout
        for frame in self.frames.values():
            latest = frame.sent_at + self._settings.slow_timeout
            if frame.due > now or not frame.asks or latest <= now:
                continue
            if is_busy:
                frame.due = max(frame.due, min(heard_at + timeout, latest))
                frame.is_doubted = False
            elif is_last:
                frame.due = max(frame.due, frame.sent_at + self._settings.answer_timeout)
            elif not frame.is_doubted:
                frame.due = min(now + timeout, latest)
                frame.is_doubted = True
                silent.append(frame)
        overdue = [seq for seq, frame in self.frames.items() if frame.due <= now]
        frames = [self.frames.pop(seq) for seq in overdue]
        for seq, frame in zip(overdue, frames, strict=True):
            self.give_up(frame, SHED if is_busy and not is_last else None)
            self._expect_late(seq, frame)
        if any(frame.asks for frame in frames):
            self.round_trips.expire()
        return [] if is_busy else [*silent, *frames]

    def refuse(self, seq: int) -> None:
        """Give up a frame that the member refused; rows that it waits for may be answered yet."""
        frame = self.frames.pop(seq)
        self.give_up(frame)
        if frame.parts is not None:
            self._expect_late(seq, frame)

    def _expect_late(self, seq: int, frame: Frame) -> None:
        self._given_up[seq] = frame
        if len(self._given_up) > self._settings.max_frames:
            del self._given_up[next(iter(self._given_up))]

    def give_up_calls(self) -> None:
        """Give up calls that were sent: the member does not know one of these messages."""
        for seq in [seq for seq, frame in self.frames.items() if frame.on_reply is not None]:
            self.give_up(self.frames.pop(seq))

    def give_up_unsent(self) -> None:
        """Give up what has not left."""
        outbox, self._outbox = self._outbox, deque()
        calls, self._calls = self._calls, deque()
        self._give_up_asks(outbox)
        for call in calls:
            self._tell(call.on_reply, None)

    def give_up_everything(self) -> None:
        """Give up all that waits, in flight or not."""
        frames, self.frames = self.frames, {}
        for frame in frames.values():
            self.give_up(frame)
        self.give_up_unsent()

    def give_up(self, frame: Frame, answer: Shed | None = None) -> None:
        """Tell those who wait for a frame, no longer in flight, that there is no answer."""
        if frame.parts is None:
            self._give_up_asks(frame.asks, answer)
        else:
            self._give_up_asks([each.ask for each in frame.parts.unfinished()], answer)
        if frame.on_reply is not None:
            self._tell(frame.on_reply, None)

    def _give_up_asks(self, asks: Iterable[Ask], answer: Shed | None = None) -> None:
        self._close_crowd()  # It may be among them, and nobody may join it then.
        for ask in asks:
            self._waiting_keys -= len(ask.batch)
            self._tell(ask.done, answer)

    def _tell(self, tell: Callable[[_T], object], answer: _T) -> None:
        """Call back one caller; an exception of its callback must not delay other callers."""
        try:
            tell(answer)
        except Exception as error:  # noqa: BLE001
            self._report(error)

    def _due(self, ask: Ask) -> float:
        return ask.asked_at + self._settings.answer_timeout


def _rows_of(frame: Frame, answer: Answer) -> Sequence[int] | None:
    """Name the rows of a frame that an answer is about; None when they do not fit each other."""
    count = sum([len(ask.batch) for ask in frame.asks])
    rows = range(count) if answer.rows is None else answer.rows
    fits = count and len(answer.outcomes) == len(rows) and rows[-1] < count
    return rows if fits else None
