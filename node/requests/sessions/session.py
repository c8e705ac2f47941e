"""One connection to a node, from the first message (`Hello`) to its end.

Decides what the peer may request, and passes each message to its handler. Bytes that violate the
protocol end only this connection.
"""

import logging

from node.config.access import Access, proof_in
from node.requests.sessions.caller import INTERNAL_ERROR, Caller, internal_refusal
from node.requests.sessions.node_api import NodeApi
from node.requests.sessions.permissions import Permissions
from node.requests.sessions.request_intake import RequestIntake
from node.requests.sessions.sent_answers import Sender
from ringfence.settings.token_file import Scope
from ringfence.transport.interface import Connection, Timer, Transport
from ringfence.wire import (
    MAX_ARRAYS,
    MAX_HELLO,
    MAX_MESSAGE,
    AskLeave,
    AskMembers,
    AskPeers,
    AskRules,
    AskStats,
    AskTakenOver,
    AskThrottled,
    BadMessage,
    Copy,
    Digest,
    Done,
    ErrorCode,
    Exchange,
    Hello,
    LeaseRequest,
    Message,
    Ping,
    Pong,
    Pull,
    RecoverCounts,
    Refused,
    Report,
    Request,
    Role,
    SubscribeDenials,
    TransferAck,
    TransferOffer,
    WindowCounts,
    WrongVersion,
    decode,
    encode,
)

__all__ = ["Session"]

logger = logging.getLogger("ringfence.node")

_HELLO_WITHIN = 5.0
"""Seconds that a connection may stay open before its hello."""
_MAX_UNSENT = 4 << 20
"""Bytes of answers that a peer may leave unread; a connection above it is closed."""


class Session:
    """Handler of one incoming connection of a client or node."""

    _sender: Sender[Caller] | None = None
    """Known after the hello, as the permissions and the intake."""
    _permissions: Permissions
    _intake: RequestIntake

    def __init__(self, api: NodeApi, transport: Transport, connection: Connection) -> None:
        self._api = api
        self._sessions = api.sessions
        self._transport = transport
        self._connection = connection
        self._role: Role | None = None
        self._proof = b""
        """Stored part of its credential, checked again after a change of keys or tokens."""
        self._binding = b""
        self._hello_timer: Timer | None = None
        self._is_over = False

    # -- the connection ------------------------------------------------------------------------

    def on_open(self, connection: Connection) -> None:
        """Start the time-out for the `Hello` message."""
        self._hello_timer = self._transport.call_at(
            self._transport.now() + _HELLO_WITHIN,
            lambda: self._refuse(ErrorCode.HELLO_TIMEOUT, "no hello came in time"),
        )

    def on_message(self, payload: bytes) -> None:
        """Decode and handle one frame."""
        sender = self._sender
        if sender is not None and sender.waiting and self._intake.defer(payload):
            return
        message = self._decode(payload)
        if message is not None and not self._api.containment.call("session", self._take, message):
            self._refuse_after_error(message)

    def _decode(self, payload: bytes) -> Message | None:
        """Decode a frame; end the connection and return None when it is not a message."""
        limit = MAX_HELLO if self._sender is None else MAX_MESSAGE
        # Only members send messages with maps, for counts by data center.
        is_member = self._role is Role.NODE
        arrays = None if is_member else MAX_ARRAYS
        try:
            return decode(payload, limit=limit, maps=is_member, arrays=arrays)
        except WrongVersion as error:
            self._refuse(ErrorCode.WRONG_VERSION, str(error))
        except BadMessage as error:
            self._api.counters.refused(f"bad_message_{error.cause}")
            self.close(ErrorCode.BAD_MESSAGE, str(error))
        return None

    def on_close(self, code: int, reason: str) -> None:
        """Remove the connection. The sender's stored answers are kept, because the sender may
        reconnect."""
        self._end()

    def send(self, message: Message) -> None:
        """Send a message to the peer."""
        self.send_payload(encode(message))

    def send_payload(self, payload: bytes) -> None:
        """Send an encoded message; close the connection when too much is unacknowledged."""
        self._connection.send(payload)
        unsent = self._connection.unsent
        if unsent > _MAX_UNSENT:
            self.give_up()
        else:
            self._sessions.on_sent(self, len(payload), unsent)

    def give_up(self) -> None:
        """Close the connection because the peer does not read."""
        self._api.counters.refused("slow_reader")
        self.close(ErrorCode.OVERLOADED, "answers are not being read")

    def close(self, code: ErrorCode, reason: str) -> None:
        """Close the connection with an error code and a reason."""
        self._connection.close(code, reason)
        self._end()

    def _refuse(self, code: ErrorCode, reason: str) -> None:
        self._api.counters.refused(code.name.lower())
        self.send_payload(encode(Refused(0, code, reason[:500])))
        self.close(code, reason)

    def _end(self) -> None:
        self._is_over = True
        if self._hello_timer is not None:
            self._hello_timer.cancel()
        if self._sender is not None and self._sender.session is self:
            self._sender.session = None
        self._sessions.on_closed(self)

    @property
    def unsent(self) -> int:
        """Number of bytes that were sent to the peer and not acknowledged."""
        return self._connection.unsent

    @property
    def is_member(self) -> bool:
        """Whether the peer has proved to be a node of the cluster."""
        return self._role is Role.NODE

    @property
    def process(self) -> object:
        """Identity of the process that sends, which stays the same when it connects again."""
        return self if self._sender is None else self._sender.identity

    @property
    def is_over(self) -> bool:
        """Whether this connection has ended."""
        return self._is_over

    def spent(self, key: bytes, units: int) -> None:
        """Record units that this client has spent from a lease, because it may refund at most what
        it spent."""
        if self._sender is not None and self._sender.ledger is not None:
            self._sender.ledger.spent(key, units)

    def returned(self, key: bytes, units: int) -> int:
        """Remove units of a lease from those that `spent` recorded, because the client has not
        spent them; return how many of them the client has not refunded already."""
        if self._sender is None or self._sender.ledger is None:
            return units
        return self._sender.ledger.returned(key, units)

    # -- authentication ------------------------------------------------------------------------

    def _greet(self, hello: Hello) -> None:
        """Verify a `Hello` message, then accept its sender or close the connection."""
        binding = self._connection.binding
        scopes = self._api.access.admit(hello, self._connection.address, binding)
        if scopes is None:
            self._refuse(ErrorCode.BAD_CREDENTIAL, self._api.access.refusal_of(hello))
            return
        welcome = self._sessions.welcome(self, hello)
        if isinstance(welcome, Refused):
            self._refuse(ErrorCode(welcome.code), welcome.reason)
            return
        if self._hello_timer is not None:
            self._hello_timer.cancel()
        self._role = hello.role
        self._proof, self._binding = proof_in(hello), binding
        self._sender = sender = self._api.access.sender(hello)
        earlier, sender.session = sender.session, self
        if earlier is not None and self.is_member:
            # The member has abandoned it. Late replicas from there would overwrite newer ones.
            earlier.close(ErrorCode.OK, "this process has connected again")
        self._permissions = Permissions(self._api, self, hello.role, self._transport.now())
        self._permissions.grant(sender, scopes)
        self._intake = RequestIntake(
            self._api, self._transport, self, sender, self._permissions, self._decode
        )
        self.send(welcome)

    def recheck(self, access: Access) -> bool:
        """Verify the credentials again after a change of keys; return whether the session has
        ended."""
        if self._role is None or self._sender is None:
            return False
        scopes = access.scopes_now(self._role, self._sender.identity[0], self._proof, self._binding)
        if scopes is None:
            self._refuse(ErrorCode.BAD_CREDENTIAL, "the credential is no longer valid")
            return True
        self._permissions.grant(self._sender, scopes)
        return False

    # -- messages ------------------------------------------------------------------------------

    def _take(self, message: Message) -> None:
        sender = self._sender
        match message:
            case Hello() if sender is None:
                self._greet(message)
            case _ if sender is None:
                self._refuse(ErrorCode.HELLO_EXPECTED, "say hello first")
            case Request():
                self._intake.take(message)
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
                    self._api.peer_requests.serve(self, sender.identity[0], message)
                else:
                    self._refuse(ErrorCode.NOT_PERMITTED, "only nodes ask each other this")
            case Ping(seq):
                self.send(Pong(seq))
            case Hello():
                self._refuse(ErrorCode.HELLO_EXPECTED, "a second hello came")
            case _:
                self._take_query(message, sender)

    def _take_query(self, message: Message, sender: Sender[Caller]) -> None:
        """Answer the queries of clients and of the command line, such as members, rules and
        counters."""
        may = self._permissions.may
        match message:
            case AskMembers(seq):
                self.send(self._api.queries.members(seq))
            case AskRules(seq):
                self._intake.send_rules(seq)
            case AskStats(seq):
                if may(seq, Scope.OBSERVE):
                    self.send(self._api.queries.stats(seq))
            case AskPeers(seq):
                if may(seq, Scope.OBSERVE):
                    self.send(self._api.queries.peers(seq))
            case AskThrottled(seq, count):
                if may(seq, Scope.OBSERVE):
                    self.send(self._api.queries.throttled(seq, count))
            case AskLeave(seq):
                if may(seq, Scope.ADMIN):
                    self.send(Done(seq))
                    self._api.ask_to_leave()
            case SubscribeDenials() | LeaseRequest() | Report():
                self._take_cache_message(message, sender)
            case _:
                kind = type(message).__name__
                self._refuse(
                    ErrorCode.BAD_MESSAGE,
                    f"{kind} must answer a request of this node, got none pending",
                )

    def _take_cache_message(
        self, message: SubscribeDenials | LeaseRequest | Report, sender: Sender[Caller]
    ) -> None:
        """Handle messages of a client's local cache: denials, leases, and reports of its
        decisions."""
        seq = message.seq
        match message:
            case SubscribeDenials():
                if self._role is Role.CLIENT:
                    self._api.caches.subscribe(self)
                self.send(Done(seq))
            case LeaseRequest():
                may_check = self._permissions.may(seq, Scope.CHECK)
                if may_check and self._permissions.may_use(seq, sender, [message.key]):
                    self.send(self._api.caches.lend(self, message))
            case Report():
                if self._permissions.may_report(seq, self._transport.now()):
                    self._api.caches.record_report(sender.identity[0], message)
                    self.send(Done(seq))

    def _refuse_after_error(self, message: Message) -> None:
        """Refuse a message that caused an internal error; close the session if the message has no
        number."""
        sender, seq = self._sender, getattr(message, "seq", 0)
        if sender is None or not seq:
            self._refuse(ErrorCode.INTERNAL, INTERNAL_ERROR)
            return
        self._api.counters.refused("internal")
        payload = encode(internal_refusal(seq))
        if isinstance(message, Request):
            # The request may have been charged, so it must not be decided again.
            sender.remember(seq, payload)
        self.send_payload(payload)
