"""Interfaces between a session and its node."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from node.containment import Containment
from node.requests.refund_ledger import RefundLedger
from node.requests.request_parts import Part
from node.requests.sessions.sent_answers import Sender
from ringfence.settings.token_file import Scope
from ringfence.transport.interface import Address
from ringfence.wire import (
    Answer,
    Batch,
    ErrorCode,
    Hello,
    LeaseGrant,
    LeaseRequest,
    Members,
    Message,
    Peers,
    Refused,
    Report,
    Request,
    Results,
    Stats,
    Throttled,
    Welcome,
)

__all__ = ["Caller", "NodeApi", "internal_refusal"]

INTERNAL_ERROR = "the node met an internal error; its log has the traceback"


def internal_refusal(seq: int) -> Refused:
    """Return a refusal of the request `seq`, which caused an internal error."""
    return Refused(seq, ErrorCode.INTERNAL, INTERNAL_ERROR)


class Caller(Protocol):
    """One connected client or member, as the node sees it."""

    @property
    def is_member(self) -> bool:
        """Whether the caller has proved to be a node of the cluster."""

    @property
    def is_over(self) -> bool:
        """Whether the connection of the caller has ended."""

    @property
    def unsent(self) -> int:
        """Number of bytes that were sent to the caller and not acknowledged."""

    def send(self, message: Message) -> None:
        """Send a message to the caller."""

    def send_payload(self, payload: bytes) -> None:
        """Send an encoded message; close the connection when too much is unacknowledged."""

    def spent(self, key: bytes, units: int) -> None:
        """Record units that this client has spent from a lease, as a bound of its refunds."""

    def close(self, code: ErrorCode, reason: str) -> None:
        """Close the connection with an error code and a reason."""

    def give_up(self) -> None:
        """Close the connection because the peer does not read."""


class NodeApi(Protocol):
    """Methods of a node that a session calls."""

    @property
    def containment(self) -> Containment:
        """Containment of internal errors during the handling of a message."""

    def admit(self, hello: Hello, address: Address, binding: bytes) -> frozenset[Scope] | None:
        """Return the scopes of the sender of a `Hello` message; None to refuse it.

        `binding` is the secret of its connection.
        """

    def sender(self, hello: Hello) -> Sender[Caller]:
        """Return the stored answers of the sender of a `Hello`, which outlive its connections."""

    def ledger(self, name: str) -> RefundLedger:
        """Return the recent charges of a token, which limit its refunds."""

    def foreign(self, name: str, keys: Sequence[bytes]) -> str | None:
        """Return the reason why a token must not use these keys; None when it may use them."""

    def cut(self, units: int) -> None:
        """Count refunded units that were ignored because this token was not charged for them."""

    def welcome(self, session: Caller, hello: Hello) -> Welcome | Refused:
        """Return the answer to a valid `Hello`; a refusal when the node is leaving or full."""

    def decide(
        self, request: Request, batch: Batch, waited_ns: int | None = None
    ) -> Results | Refused | list[Part]:
        """Decide a request now, refuse it, or return its parts because some rows must wait.

        `waited_ns` is the time that the request has waited; None stands for the wait of the current
        datagram.
        """

    def cost_of(self, request: Request) -> int:
        """Estimate the work for a request in microseconds; 0 when it is small for the request's
        size."""

    def wait_turn(
        self, sender: Sender[Caller], steps: Iterator[None], rows: int, size: int = 0
    ) -> bool:
        """Queue a request until its turn; return False when too many requests wait.

        `rows` is the number of its rows, `size` the bytes of a request that is not decoded yet.
        """

    def was_decided_elsewhere(self, session: int, seq: int) -> bool:
        """Return whether a check of this request was already decided on another path."""

    def forward(
        self,
        sender: Sender[Caller],
        request: Request,
        part: Part,
        waited_ns: int | None = None,
    ) -> None:
        """Decide a part of a request later, then store and send its answer."""

    def answer(self, request: Request, results: Results, rows: list[int] | None = None) -> Answer:
        """Create the answer message for some rows of a request; None means all rows."""

    def members(self, seq: int) -> Members:
        """Return the message with the members of the cluster."""

    def rules(self, seq: int) -> bytes:
        """Return the encoded message with the current rules."""

    def stats(self, seq: int) -> Stats:
        """Return the message with the counters of this node."""

    def peers(self, seq: int) -> Peers:
        """Return the message with everything that this node has recorded about the members."""

    def listen(self, session: Caller) -> None:
        """Subscribe a client, which caches denials, to denials that end early."""

    def lend(self, session: Caller, borrow: LeaseRequest) -> LeaseGrant:
        """Grant a client a lease of a key, and settle its earlier leases."""

    def asked(
        self, sender: Sender[Caller], request: Request, batch: Batch, rows: list[int] | None
    ) -> None:
        """Store the keys of checks that a client sent directly, for deduplication."""

    def denied(self, session: Caller, batch: Batch, results: Results) -> None:
        """Record the denials of a batch if the client is subscribed."""

    def unsettle(self, session: Caller) -> None:
        """Revoke all denials of this node that the client may have cached."""

    def reported(self, name: str, report: Report) -> None:
        """Count decisions that a client made itself. `name` is the name of its token."""

    def throttled(self, seq: int, count: int) -> Throttled:
        """Return at most `count` keys that this node denied most."""

    def ask_to_leave(self) -> None:
        """Start to leave the cluster, because an operator requested it."""

    def serve_peer(self, session: Caller, name: str, message: Message) -> None:
        """Answer a message of the member `name`, immediately or later."""

    def refused(self, cause: str) -> None:
        """Count a refusal with this cause."""

    def sent(self, session: Caller, size: int) -> None:
        """Count a sent message of `size` bytes; this may close sessions whose peers do not read."""

    def repeated(self) -> None:
        """Count a request that was received again and not decided again."""

    def left(self, session: Caller) -> None:
        """Remove a connection that has ended."""
