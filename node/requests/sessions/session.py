"""One connection to a node, from hello to goodbye.

Decides what the other side may ask, and answers each frame it sends. Deciding and forwarding are
the `NodeApi`'s; bytes that break the protocol end this connection and nothing else.
"""

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Protocol

from node.config.access import Access, proof_in
from node.containment import Containment
from node.requests.client_reports import Pace
from node.requests.deduplication.decided_checks import COUNTED_ONCE
from node.requests.deduplication.sent_answers import Sender
from node.requests.refund_ledger import RefundLedger
from node.requests.request_parts import Part
from node.requests.sessions.turns import DIRECT_COST, steps_of
from ringfence.errors import LocalProtocolError
from ringfence.settings.token_file import Scope
from ringfence.transport.interface import Address, Connection, Timer, Transport
from ringfence.wire import (
    MAX_ARRAYS,
    MAX_HELLO,
    MAX_MESSAGE,
    Answer,
    AskLeave,
    AskMembers,
    AskPeers,
    AskRules,
    AskStats,
    AskTakenOver,
    AskThrottled,
    BadMessage,
    Batch,
    CheckId,
    Copy,
    Digest,
    Done,
    ErrorCode,
    Exchange,
    Hello,
    LeaseGrant,
    LeaseRequest,
    Members,
    Message,
    Op,
    Peers,
    Ping,
    Pong,
    Pull,
    RecoverCounts,
    Refused,
    Report,
    Request,
    Results,
    Role,
    Stats,
    SubscribeDenials,
    Throttled,
    TransferAck,
    TransferOffer,
    Welcome,
    WindowCounts,
    WrongVersion,
    decode,
    encode,
)

__all__ = ["NodeApi", "Session", "internal_refusal"]

logger = logging.getLogger("ringfence.node")

_HELLO_WITHIN = 5.0
"""Seconds a connection may stay open without saying who it is."""
_MOST_UNSENT = 4 << 20
"""Bytes of answers a peer may leave unread; a connection above it is closed."""
_MOST_REFUSALS = 256
"""Requests of a caller that wait, above which further ones are refused out of turn."""
_SCOPES = {
    Op.CHECK: Scope.CHECK,
    Op.REFUND: Scope.CHECK,
    Op.RESET: Scope.RESET,
    Op.CHARGE: Scope.CHECK,
    Op.RENEW: Scope.CHECK,
}


_INTERNAL = "the node met an internal error; its log has the traceback"


def internal_refusal(seq: int) -> Refused:
    """Refuse the question `seq`, which met an internal error."""
    return Refused(seq, ErrorCode.INTERNAL, _INTERNAL)


class NodeApi(Protocol):
    """What a session needs of its node."""

    @property
    def containment(self) -> Containment:
        """Contains internal errors in the handling of a message."""

    def admit(self, hello: Hello, address: Address, binding: bytes) -> frozenset[Scope] | None:
        """Return the scopes of the sender, which is at `address`; None to refuse it.

        `binding` is the secret of its connection.
        """

    def sender(self, hello: Hello) -> "Sender[Session]":
        """The memory kept for a sender, across its connections."""

    def ledger(self, name: str) -> RefundLedger:
        """Return the recent charges of a token, which bound its refunds."""

    def foreign(self, name: str, keys: Sequence[bytes]) -> str | None:
        """Return why a token must not use these keys; None when it may."""

    def cut(self, units: int) -> None:
        """Count refunded units that were cut because this token was not charged them."""

    def welcome(self, session: "Session", hello: Hello) -> Welcome | Refused:
        """The answer to a good hello; a refusal when the node is leaving or full."""

    def decide(
        self, request: Request, batch: Batch, waited_ns: int | None = None
    ) -> Results | Refused | list[Part]:
        """Decide now, refuse, or return parts because some rows must wait.

        `waited_ns` is for how long the request has waited; None for the wait of the present
        datagram.
        """

    def cost_of(self, request: Request) -> int:
        """Estimate the work of a request in microseconds; 0 when it is little for its size."""

    def wait_turn(self, sender: "Sender[Session]", steps: Iterator[None], rows: int) -> bool:
        """Let a request of `rows` rows wait for its turn; return False when too many wait."""

    def was_decided_elsewhere(self, session: int, seq: int) -> bool:
        """Return whether a row of this request was already decided as a repeat."""

    def forward(
        self,
        sender: "Sender[Session]",
        request: Request,
        part: Part,
        waited_ns: int | None = None,
    ) -> None:
        """Remember and send the answer of a part as soon as it is decided."""

    def answer(self, request: Request, verdicts: Results, rows: list[int] | None = None) -> Answer:
        """Make the answer for some rows of a request; None for all."""

    def members(self, seq: int) -> Members:
        """The members."""

    def rules(self, seq: int) -> bytes:
        """The encoded `Rules`."""

    def stats(self, seq: int) -> Stats:
        """The node's counters."""

    def peers(self, seq: int) -> Peers:
        """All that is known of the members."""

    def listen(self, session: "Session") -> None:
        """The client remembers denials: tell it of those that end early."""

    def lend(self, session: "Session", borrow: LeaseRequest) -> LeaseGrant:
        """Lend units of a key, and take back what was lent before."""

    def asked(
        self, sender: "Sender[Session]", request: Request, batch: Batch, rows: list[int] | None
    ) -> None:
        """Remember the keys of direct checks, which are answered now."""

    def denied(self, session: "Session", batch: Batch, verdicts: Results) -> None:
        """Note what a client was denied here just now."""

    def unsettle(self, session: "Session") -> None:
        """The client may hold denials that nobody watches: it must forget all from here."""

    def reported(self, name: str, report: Report) -> None:
        """Count decisions that a client made itself, once; `name` is its token."""

    def throttled(self, seq: int, count: int) -> Throttled:
        """The keys that this node denied most, at most `count`."""

    def ask_to_leave(self) -> None:
        """An operator wants the node to leave."""

    def serve_peer(self, session: "Session", name: str, message: Message) -> None:
        """Answer what only nodes ask, now or later; `name` is the node that asks."""

    def refused(self, cause: str) -> None:
        """Count a refusal."""

    def sent(self, session: "Session", size: int) -> None:
        """Count a message of `size` bytes in flight; sessions that do not read may be closed."""

    def repeated(self) -> None:
        """Count a request that came before and was not decided again."""

    def left(self, session: "Session") -> None:
        """The connection is gone."""


class Session:
    """The `Handler` of one incoming connection."""

    def __init__(self, desk: NodeApi, transport: Transport, connection: Connection) -> None:
        self._desk = desk
        self._transport = transport
        self._connection = connection
        self._scopes: frozenset[Scope] = frozenset()
        self._role: Role | None = None
        self._sender: Sender[Session] | None = None
        """Known once it has said hello."""
        self._proof = b""
        """Stored part of its credential, checked again after a change of keys or tokens."""
        self._binding = b""
        self._hello_timer: Timer | None = None
        self._report_pace = Pace(transport.now())
        self._is_over = False

    def on_open(self, connection: Connection) -> None:
        """Wait for a hello, but not for ever."""
        self._hello_timer = self._transport.call_at(
            self._transport.now() + _HELLO_WITHIN,
            lambda: self._refuse(ErrorCode.HELLO_TIMEOUT, "no hello came in time"),
        )

    def on_message(self, payload: bytes) -> None:
        """Answer one frame."""
        try:
            limit = MAX_HELLO if self._sender is None else MAX_MESSAGE
            is_member = self._role is Role.NODE  # Only members send maps: counts by data center.
            arrays = None if is_member else MAX_ARRAYS
            message = decode(payload, limit=limit, maps=is_member, arrays=arrays)
        except WrongVersion as error:
            self._refuse(ErrorCode.WRONG_VERSION, str(error))
        except BadMessage as error:
            self._desk.refused(f"bad_message_{error.cause}")
            self._close(ErrorCode.BAD_MESSAGE, str(error))
        else:
            if not self._desk.containment.call("session", self._take, message):
                self._refuse_after_error(message)

    def on_close(self, code: int, reason: str) -> None:
        """Forget the connection; the sender's memory stays, for it may come back."""
        self._end()

    def send(self, message: Message) -> None:
        """Send a message of the node's own accord."""
        self.send_payload(encode(message))

    def send_payload(self, payload: bytes) -> None:
        """Send an encoded message; a peer that leaves too much unread is let go."""
        self._connection.send(payload)
        if self._connection.unsent > _MOST_UNSENT:
            self.give_up()
        else:
            self._desk.sent(self, len(payload))

    def give_up(self) -> None:
        """Close a connection whose peer does not read."""
        self._desk.refused("slow_reader")
        self._close(ErrorCode.OVERLOADED, "answers are not being read")

    @property
    def unsent(self) -> int:
        """Bytes that the peer has not acknowledged."""
        return self._connection.unsent

    @property
    def is_member(self) -> bool:
        """Whether the peer has proved to be a node of the cluster."""
        return self._role is Role.NODE

    def spent(self, key: bytes, units: int) -> None:
        """Count units that this client has spent from a lease."""
        if self._sender is not None and self._sender.ledger is not None:
            self._sender.ledger.spent(key, units)

    def close(self, code: ErrorCode, reason: str) -> None:
        """End the connection from this side."""
        self._close(code, reason)

    def recheck(self, access: Access) -> bool:
        """Apply changed keys and tokens; return whether that has ended the session."""
        if self._role is None or self._sender is None:
            return False
        scopes = access.scopes_now(self._role, self._sender.who[0], self._proof, self._binding)
        if scopes is None:
            self._refuse(ErrorCode.BAD_CREDENTIAL, "the credential is no longer valid")
            return True
        self._set_scopes(self._sender, scopes)
        return False

    def _take(self, message: Message) -> None:  # noqa: PLR0912 - one branch per message
        if self._sender is None:
            if isinstance(message, Hello):
                self._greet(message)
            else:
                self._refuse(ErrorCode.HELLO_EXPECTED, "say hello first")
            return
        match message:
            case Request():
                self._ask(message, self._sender)
            case AskMembers(seq):
                self.send(self._desk.members(seq))
            case AskRules(seq):  # Up to a megabyte is copied.
                self._wait_turn(self._sender, seq, self._send_rules(seq), 1)
            case AskStats(seq):
                if self._may(seq, Scope.OBSERVE):
                    self.send(self._desk.stats(seq))
            case AskPeers(seq):
                if self._may(seq, Scope.OBSERVE):
                    self.send(self._desk.peers(seq))
            case SubscribeDenials(seq):
                if self._role is Role.CLIENT:
                    self._desk.listen(self)
                self.send(Done(seq))
            case LeaseRequest(seq):
                if self._may(seq, Scope.CHECK) and self._may_ask(seq, [message.key]):
                    self.send(self._desk.lend(self, message))
            case Report(seq):
                if self._may_report(seq):
                    self._desk.reported(self._sender.who[0], message)
                    self.send(Done(seq))
            case AskThrottled(seq, count):
                if self._may(seq, Scope.OBSERVE):
                    self.send(self._desk.throttled(seq, count))
            case AskLeave(seq):
                if self._may(seq, Scope.ADMIN):
                    self.send(Done(seq))
                    self._desk.ask_to_leave()
            case (
                Exchange()
                | Pull()
                | Copy()
                | TransferOffer()
                | TransferAck()
                | WindowCounts()
                | Digest()
                | RecoverCounts()
                | AskTakenOver()
            ):
                if self._role is Role.NODE:
                    self._desk.serve_peer(self, self._sender.who[0], message)
                else:
                    self._desk.refused("not_permitted")
                    self._refuse(ErrorCode.NOT_PERMITTED, "only nodes ask each other this")
            case Ping(seq):
                self.send(Pong(seq))
            case Hello():
                self._refuse(ErrorCode.HELLO_EXPECTED, "a second hello came")
            case _:
                kind = type(message).__name__
                self._refuse(ErrorCode.BAD_MESSAGE, f"nobody asked for a {kind}")

    def _greet(self, hello: Hello) -> None:
        binding = self._connection.binding
        scopes = self._desk.admit(hello, self._connection.address, binding)
        if scopes is None:
            what = "cluster key" if hello.role is Role.NODE else "token"
            self._refuse(
                ErrorCode.BAD_CREDENTIAL,
                f"the {what} shown by {hello.name!r} is not one this node knows",
            )
            return
        welcome = self._desk.welcome(self, hello)
        if isinstance(welcome, Refused):
            self._refuse(ErrorCode(welcome.code), welcome.reason)
            return
        if self._hello_timer is not None:
            self._hello_timer.cancel()
        self._role = hello.role
        self._proof, self._binding = proof_in(hello), binding
        self._sender = self._desk.sender(hello)
        self._sender.session = self
        self._set_scopes(self._sender, scopes)
        self.send(welcome)

    def _set_scopes(self, sender: "Sender[Session]", scopes: frozenset[Scope]) -> None:
        """Grant these scopes; without the scope `refund`, a ledger bounds what is given back."""
        self._scopes = scopes
        is_bounded = self._role is Role.CLIENT and Scope.REFUND not in scopes
        sender.ledger = self._desk.ledger(sender.who[0]) if is_bounded else None

    def _ask(self, request: Request, sender: "Sender[Session]") -> None:
        seq = request.seq
        batch = request.batch
        scope = _SCOPES[batch.op]
        if not self._may(seq, scope):
            return
        if request.hops and self._role is not Role.NODE:
            self._refuse(ErrorCode.NOT_PERMITTED, "only a node forwards")
            return
        if not self._may_ask(seq, batch.keys):
            return
        if sender.has_asked(seq):
            self._desk.repeated()
            answers = sender.answers_to(seq)
            for answer in answers:
                self.send_payload(answer)
            if answers:
                self._desk.unsettle(self)  # What it was denied then may have been lifted since.
            return
        is_first_ask = batch.op in COUNTED_ONCE and not batch.ids
        if is_first_ask and self._desk.was_decided_elsewhere(sender.who[1], seq):
            batch.ids = _ids(sender.who[1], seq, range(len(batch)))
        if batch.op is Op.REFUND and sender.ledger is not None:
            self._desk.cut(sender.ledger.bound(batch))
        cost = self._desk.cost_of(request)
        # A member's frames hold checks of many callers, so short ones need not wait for long ones.
        if cost > DIRECT_COST or (sender.waiting and self._role is Role.CLIENT):
            arrived = self._transport.now() - self._transport.held_up_ns / 1e9
            steps = self._decide_in_steps(sender, request, batch, cost, arrived)
            if self._wait_turn(sender, seq, steps, len(batch)):
                sender.remember(seq, None)
            return
        decided = self._desk.decide(request, batch)
        if isinstance(decided, Refused):
            self.send(decided)
        else:
            self._settle(sender, request, batch, decided)

    def _settle(
        self,
        sender: "Sender[Session]",
        request: Request,
        batch: Batch,
        decided: Results | list[Part],
        place: Sequence[int] | None = None,
        waited_ns: int | None = None,
    ) -> None:
        """Answer what is decided, and have the rest answered later.

        `place` has the places of the batch's rows in the request; None when it is all of it.
        """
        if isinstance(decided, Results):
            self._answer(sender, request, batch, decided, None if place is None else list(place))
            return
        is_first_ask = batch.op in COUNTED_ONCE and not batch.ids
        sender.remember(request.seq, None)
        for part in decided:
            if place is not None:
                rows = range(len(batch)) if part.rows is None else part.rows
                part.rows = [place[row] for row in rows]
            if part.is_decided and part.verdicts is not None:
                self._answer(sender, request, part.batch, part.verdicts, part.rows)
            else:
                if is_first_ask:
                    rows = range(len(batch)) if part.rows is None else part.rows
                    part.batch.ids = _ids(sender.who[1], request.seq, rows)
                self._desk.forward(sender, request, part, waited_ns)

    # -- requests that wait for their turn -----------------------------------------------------

    def _wait_turn(
        self, sender: "Sender[Session]", seq: int, steps: Iterator[None], rows: int
    ) -> bool:
        if self._desk.wait_turn(sender, steps, rows):
            return True
        # A caller that is refused at once sends on at once, and each message takes time to read.
        steps = self._refuse_in_turn(seq)
        if sender.waiting >= _MOST_REFUSALS or not self._desk.wait_turn(sender, steps, 0):
            deque(steps, maxlen=0)
        return False

    def _refuse_in_turn(self, seq: int) -> Iterator[None]:
        if not self._is_over:
            reason = "too many requests wait for their turn"
            self.send(Refused(seq, ErrorCode.OVERLOADED, reason))
        yield from ()

    def _send_rules(self, seq: int) -> Iterator[None]:
        if not self._is_over:
            self.send_payload(self._desk.rules(seq))
        yield from ()

    def _decide_in_steps(
        self, sender: "Sender[Session]", request: Request, batch: Batch, cost: int, arrived: float
    ) -> Iterator[None]:
        """Decide and answer a request step by step, until a step is refused."""
        deadline_ns = request.deadline_ms * 1_000_000
        may_be_late = batch.op is Op.CHECK
        for step in steps_of(batch.groups, len(batch), cost):
            if step.start:
                yield
            waited_ns = round((self._transport.now() - arrived) * 1e9)
            is_late = may_be_late and waited_ns > deadline_ns
            rows = range(step.start, len(batch)) if is_late else step
            refused: list[Refused] = []
            decide = partial(self._decide_rows, sender, request, batch, rows, waited_ns, refused)
            if not self._desk.containment.call("session", decide):
                self._desk.refused("internal")
                refused.append(internal_refusal(request.seq))
            if refused:
                payload = encode(refused[0])
                sender.remember(request.seq, payload)
                self._send_to(sender, payload)
                return

    def _decide_rows(
        self,
        sender: "Sender[Session]",
        request: Request,
        batch: Batch,
        rows: range,
        waited_ns: int,
        refused: list[Refused],
    ) -> None:
        seq = request.seq
        part = batch.take(rows)
        is_first_ask = batch.op in COUNTED_ONCE and not batch.ids
        if is_first_ask and self._desk.was_decided_elsewhere(sender.who[1], seq):
            part.ids = _ids(sender.who[1], seq, rows)
        decided = self._desk.decide(request, part, waited_ns)
        if isinstance(decided, Refused):
            refused.append(decided)
        else:
            place = None if len(rows) == len(batch) else rows
            self._settle(sender, request, part, decided, place, waited_ns)

    def _send_to(self, sender: "Sender[Session]", payload: bytes) -> None:
        """Send to the caller on this connection, or on its next one when this one is over."""
        session = sender.session if self._is_over else self
        if session is not None:
            session.send_payload(payload)

    def _answer(
        self,
        sender: "Sender[Session]",
        request: Request,
        batch: Batch,
        verdicts: Results,
        rows: list[int] | None,
    ) -> None:
        payload = self._encoded(self._desk.answer(request, verdicts, rows))
        sender.remember(request.seq, payload)
        self._send_to(sender, payload)
        sender.note(batch, verdicts)
        if batch.op in COUNTED_ONCE and not batch.ids:
            self._desk.asked(sender, request, batch, rows)
        if not self._is_over:
            self._desk.denied(self, batch, verdicts)

    def _encoded(self, answer: Answer) -> bytes:
        """Encode an answer; refuse its request alone when the codec has no place for it."""
        try:
            return encode(answer)
        except LocalProtocolError:
            logger.exception("answer not encoded: rows=%d", len(answer.results.outcomes))
            self._desk.refused("internal")
            return encode(Refused(answer.seq, ErrorCode.INTERNAL, _INTERNAL))

    def _refuse_after_error(self, message: Message) -> None:
        """Refuse the message that met an internal error; without a number it ends the session."""
        sender, seq = self._sender, getattr(message, "seq", 0)
        if sender is None or not seq:
            self._refuse(ErrorCode.INTERNAL, _INTERNAL)
            return
        self._desk.refused("internal")
        payload = encode(internal_refusal(seq))
        if isinstance(message, Request):
            sender.remember(seq, payload)  # It may have been charged: it must not be decided again.
        self.send_payload(payload)

    def _may(self, seq: int, scope: Scope) -> bool:
        """Whether the sender has this scope; if not, tell it."""
        if scope in self._scopes:
            return True
        self._desk.refused("not_permitted")
        self.send(
            Refused(seq, ErrorCode.NOT_PERMITTED, f"the token lacks the scope {scope.value!r}")
        )
        return False

    def _may_report(self, seq: int) -> bool:
        """Whether the sender may report decisions now; if not, refuse the report."""
        if self._role is not Role.CLIENT:
            self._desk.refused("not_permitted")
            self.send(Refused(seq, ErrorCode.NOT_PERMITTED, "only clients report decisions"))
            return False
        if not self._may(seq, Scope.CHECK):
            return False
        if self._report_pace.take(self._transport.now()):
            return True
        self._desk.refused("report_pace")
        self.send(Refused(seq, ErrorCode.OVERLOADED, "reports must come at most twice a second"))
        return False

    def _may_ask(self, seq: int, keys: Sequence[bytes]) -> bool:
        """Whether the sender may ask these keys; if not, refuse the request."""
        if self._role is Role.NODE or self._sender is None:
            return True
        reason = self._desk.foreign(self._sender.who[0], keys)
        if reason is None:
            return True
        self._desk.refused("not_permitted")
        self.send(Refused(seq, ErrorCode.NOT_PERMITTED, reason))
        return False

    def _refuse(self, code: ErrorCode, reason: str) -> None:
        self._desk.refused(code.name.lower())
        self.send_payload(encode(Refused(0, code, reason[:500])))
        self._close(code, reason)

    def _close(self, code: ErrorCode, reason: str) -> None:
        self._connection.close(code, reason)
        self._end()

    def _end(self) -> None:
        self._is_over = True
        if self._hello_timer is not None:
            self._hello_timer.cancel()
        if self._sender is not None and self._sender.session is self:
            self._sender.session = None
        self._desk.left(self)


def _ids(session: int, seq: int, rows: Iterable[int]) -> list[CheckId]:
    """Identities of a request's checks, for forwarding them."""
    return [(session, seq, row) for row in rows]
