"""A link of the core level: asks and calls to one member, over the heap instead of QUIC.

As patient as `ringfence.peering.link`, whose settings and round-trip time-outs it takes: a member
that is silent for a time-out is doubted and pinged, its frames are given up after the second one,
and when the ping is not answered either it is lost, and knocked at until it answers. A frame is
shed after the longest time although the member answers others. What is answered too late is taken
back. Frames are not joined, and carry values instead of bytes.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypeAlias

from gossip import Record
from hashring import View
from node.requests.deduplication.decided_checks import COUNTED_ONCE
from ringfence.peering.link.outgoing import QueuedBatch, make_request
from ringfence.peering.link.round_trips import RoundTrips
from ringfence.peering.link.settings import LinkSettings
from ringfence.peering.target import SHED, ResultCallback
from ringfence.wire import Answer, Batch, ErrorCode, Message, Op, Ping, Refused, Request
from simulations.core_level.network import CoreNetwork

__all__ = ["Asked", "CoreLink", "Home", "Look", "Respond", "Server", "Told"]

_KNOCK_S = 1.0
"""Seconds between two attempts to reach a lost member."""
_MOST_LATE = 256


@dataclass(frozen=True, slots=True)
class Told:
    """A member's whole list of members, or a question for it: records where the wire has bytes."""

    seq: int
    records: list[Record]


@dataclass(frozen=True, slots=True)
class Look:
    """Which members do you send checks to?"""

    seq: int


Asked: TypeAlias = Message | Request | Told | Look | View
"""What is asked over a link, or answers it."""
Respond: TypeAlias = Callable[[Asked], None]


class Server(Protocol):
    """Whoever answers: one life of a node."""

    def due(self, call: Callable[[], object]) -> None:
        """Call now, or when its host goes on."""

    def serve(self, sender: str, message: Asked, respond: Respond) -> None:
        """Answer, now or later, once or never."""


class Home(Protocol):
    """Whoever asks: one life of a node, or a client."""

    name: str
    network: CoreNetwork

    @property
    def seconds(self) -> float:
        """The time."""

    def due(self, call: Callable[[], object]) -> None:
        """Call now, or when the host goes on; never when this life is over."""

    def later(self, seconds: float, call: Callable[..., object], *args: object) -> None:
        """Call after so many seconds, as `due` does."""

    def server(self, name: str) -> Server | None:
        """Who answers at a member's address, if anybody does."""

    def heard(self, name: str, view: int) -> None:
        """A member has this view."""

    def reachable(self, name: str, is_so: bool) -> None:
        """A member was lost, or is back."""


@dataclass(slots=True)
class _Frame:
    sent_at: float
    ask: QueuedBatch | None
    on_reply: Callable[[object], None] | None
    is_doubted: bool = False


class CoreLink:
    """The way from one home to one member."""

    def __init__(
        self, home: Home, to: str, settings: LinkSettings, view: Callable[[], int]
    ) -> None:
        self.to = to
        self.is_lost = False
        self._home = home
        self._settings = settings
        self._round_trips = RoundTrips()
        self._view = view
        self._frames: dict[int, _Frame] = {}
        self._given_up: dict[int, QueuedBatch] = {}
        self._next_seq = 1
        self._session = home.network.new_session()
        self._connection = 0
        """Which connection this is: what was under way on an earlier one is gone."""
        self._heard_at = float("-inf")
        self._misses = 0
        self._ping_seq = 0
        self._is_closed = False

    @property
    def silent_s(self) -> float:
        """Seconds since this side asked something without having heard from the member since."""
        now = self._home.seconds
        since = [ask.asked_at for ask in self._given_up.values() if ask.asked_at > self._heard_at]
        since += [frame.sent_at for frame in self._frames.values()]
        return now - max(min(since), self._heard_at) if since else 0.0

    def ask(
        self, batch: Batch, *, hops: int = 0, as_standby: bool = False, done: ResultCallback
    ) -> QueuedBatch | None:
        """Have the member decide `batch`; `done(None)` when it could not in time."""
        if self.is_lost or self._is_closed:
            done(None)
            return None
        ask = QueuedBatch(batch, hops, as_standby, done, self._home.seconds, _nothing)
        seq = self._add(_Frame(ask.asked_at, ask, None), self._answer_timeout)
        ask.id = self._session, seq, 0
        deadline_ms = round(self._settings.slow_timeout * 1000)
        request = make_request([ask], seq, self._view(), deadline_ms)
        if batch.op in COUNTED_ONCE and not batch.ids:
            request.batch = replace(batch, ids=[ask.id])
        self._send(seq, request)
        return ask

    def call(
        self,
        make: Callable[[int], Asked],
        on_reply: Callable[[object], None],
        timeout: float | None = None,
    ) -> None:
        """Send the message that `make` builds for a sequence number; tell its reply, or None."""
        if self.is_lost or self._is_closed:
            on_reply(None)
            return
        patience = self._settings.answer_timeout if timeout is None else timeout
        seq = self._add(_Frame(self._home.seconds, None, on_reply), patience)
        self._send(seq, make(seq))

    def look(self, on_reply: Callable[[object], None]) -> None:
        """Fetch the member's view."""
        self.call(Look, on_reply)

    def close(self) -> None:
        """Give up what waits, and stop."""
        self._is_closed = True
        self._give_up_everything()

    def retire(self) -> None:
        """Take nothing new; what was asked is still answered."""
        self._is_closed = self.is_lost = True

    @property
    def _answer_timeout(self) -> float:
        settings = self._settings
        return self._round_trips.timeout(settings.answer_timeout_least, settings.answer_timeout)

    # -- on the way ----------------------------------------------------------------------------

    def _add(self, frame: _Frame, patience: float) -> int:
        seq, self._next_seq = self._next_seq, self._next_seq + 1
        self._frames[seq] = frame
        self._home.later(patience, self._on_time, seq)
        return seq

    def _send(self, seq: int, message: Asked) -> None:
        home, server, connection = self._home, self._home.server(self.to), self._connection
        if server is None:
            return  # Nobody is there: silence tells.

        def respond(reply: Asked) -> None:
            home.network.stream(self.to, home.name, lambda: home.due(lambda: back(reply)))

        def back(reply: Asked) -> None:
            if connection == self._connection:
                self._take(seq, reply)

        def serve(came: float) -> None:
            waited_ms = (home.seconds - came) * 1000
            match message:
                case Request(batch=Batch(op=Op.CHECK)) if waited_ms > message.deadline_ms:
                    # As `Node.decide` has it.
                    respond(Refused(seq, ErrorCode.TOO_LATE, f"waited {waited_ms:.0f} ms"))
                case _:
                    server.serve(home.name, message, respond)

        def arrive() -> None:
            if connection == self._connection and home.server(self.to) is server:
                server.due(partial(serve, home.seconds))

        home.network.stream(home.name, self.to, arrive)

    def _take(self, seq: int, reply: Asked) -> None:
        self._heard_at = self._home.seconds
        self._misses = 0
        frame = self._frames.pop(seq, None)
        if isinstance(reply, Answer):
            ask = self._given_up.get(seq) if frame is None else frame.ask
            if ask is not None and not ask.as_standby:
                self._round_trips.sample(self._heard_at - ask.asked_at)
            if frame is not None and frame.ask is not None:
                frame.ask.on_results(reply.results)
            elif (late := self._given_up.pop(seq, None)) is not None:
                late.on_results(reply.results)
            self._home.heard(self.to, reply.view)
        elif frame is not None and frame.ask is not None and _is_shed(reply):
            frame.ask.on_results(SHED)
        elif frame is not None:
            _tell(frame, None if isinstance(reply, Refused) else reply)

    # -- patience ------------------------------------------------------------------------------

    def _on_time(self, seq: int) -> None:
        frame = self._frames.get(seq)
        if frame is None:
            return
        now, timeout = self._home.seconds, self._answer_timeout
        latest = frame.sent_at + self._settings.slow_timeout
        due = min(self._heard_at + timeout, latest)
        is_busy = self._heard_at > now - timeout
        if frame.ask is not None and due > now + 1e-6:
            frame.is_doubted = False
            self._home.later(due - now, self._on_time, seq)  # It is busy: it answers others.
            return
        if frame.ask is not None and latest > now + 1e-6 and not (frame.is_doubted or is_busy):
            frame.is_doubted = True
            self._home.later(min(timeout, latest - now), self._on_time, seq)
            self._doubt()
            return
        del self._frames[seq]
        if frame.ask is not None:
            self._given_up[seq] = frame.ask
            if len(self._given_up) > _MOST_LATE:
                del self._given_up[next(iter(self._given_up))]
        if frame.ask is not None and is_busy:
            frame.ask.on_results(SHED)
        else:
            _tell(frame, None)
        if frame.ask is None and self._misses and seq == self._ping_seq:
            self._on_proof()
        elif not is_busy:
            self._doubt()

    def _doubt(self) -> None:
        if not (self.is_lost or self._is_closed or self._misses):
            self._misses = 1
            self._ping_seq = self._next_seq
            timeout = self._answer_timeout
            within = max(2 * timeout, self._settings.slow_timeout - timeout)
            self.call(Ping, _nothing, within)

    def _on_proof(self) -> None:
        if self.is_lost or self._is_closed:
            return
        self._misses = 0
        self.is_lost = True
        self._connection += 1
        self._give_up_everything()
        self._home.reachable(self.to, False)
        self._knock()

    def _knock(self) -> None:
        if self._is_closed or not self.is_lost:
            return
        home, server = self._home, self._home.server(self.to)
        if server is not None and not home.network.is_cut(home.name, self.to):

            def arrive() -> None:
                server.due(lambda: home.network.stream(self.to, home.name, back))

            def back() -> None:
                home.due(self._open)

            home.network.stream(home.name, self.to, arrive)
        home.later(_KNOCK_S, self._knock)

    def _open(self) -> None:
        if self.is_lost and not self._is_closed:
            self.is_lost = False
            self._heard_at = self._home.seconds
            self._home.reachable(self.to, True)

    def _give_up_everything(self) -> None:
        frames, self._frames = self._frames, {}
        for frame in frames.values():
            _tell(frame, None)


def _tell(frame: _Frame, reply: Asked | None) -> None:
    if frame.on_reply is not None:
        frame.on_reply(reply)
    elif frame.ask is not None:
        frame.ask.on_results(None)


def _is_shed(reply: Asked) -> bool:
    return isinstance(reply, Refused) and reply.code in (ErrorCode.OVERLOADED, ErrorCode.TOO_LATE)


def _nothing(reply: object) -> None:
    """Nothing follows: frames leave at once, so none is withdrawn, and no reply is waited for."""
