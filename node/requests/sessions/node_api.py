"""Interface between a session and its node."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from node.containment import Containment
from node.requests.deduplication.sent_answers import Sender
from node.requests.refund_ledger import RefundLedger
from node.requests.request_parts import Part
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
    """Refuse the request `seq`, which met an internal error."""
    return Refused(seq, ErrorCode.INTERNAL, INTERNAL_ERROR)


class Caller(Protocol):
    """One connected client or member, as its node uses it."""

    @property
    def is_member(self) -> bool:
        """Whether the caller has proved to be a node of the cluster."""

    @property
    def is_over(self) -> bool:
        """Whether the connection has ended."""

    @property
    def unsent(self) -> int:
        """Bytes that the caller has not acknowledged."""

    def send(self, message: Message) -> None:
        """Send a message."""

    def send_payload(self, payload: bytes) -> None:
        """Send an encoded message; a caller that leaves too much unread is disconnected."""

    def spent(self, key: bytes, units: int) -> None:
        """Count units that this client has spent from a lease."""

    def close(self, code: ErrorCode, reason: str) -> None:
        """End the connection from this side."""

    def give_up(self) -> None:
        """Close a connection whose peer does not read."""


class NodeApi(Protocol):
    """What a session needs of its node."""

    @property
    def containment(self) -> Containment:
        """Contains internal errors in the handling of a message."""

    def admit(self, hello: Hello, address: Address, binding: bytes) -> frozenset[Scope] | None:
        """Return the scopes of a sender at `address`; None to refuse it.

        `binding` is the secret of its connection.
        """

    def sender(self, hello: Hello) -> Sender[Caller]:
        """Return the memory of a sender, which survives its connections."""

    def ledger(self, name: str) -> RefundLedger:
        """Return the recent charges of a token, which bound its refunds."""

    def foreign(self, name: str, keys: Sequence[bytes]) -> str | None:
        """Return why a token must not use these keys; None when it may."""

    def cut(self, units: int) -> None:
        """Count refunded units that were cut because this token was not charged them."""

    def welcome(self, session: Caller, hello: Hello) -> Welcome | Refused:
        """Return the answer to an accepted hello; a refusal when the node is leaving or full."""

    def decide(
        self, request: Request, batch: Batch, waited_ns: int | None = None
    ) -> Results | Refused | list[Part]:
        """Decide now, refuse, or return parts because some rows must wait.

        `waited_ns` is for how long the request has waited; None for the wait of the present
        datagram.
        """

    def cost_of(self, request: Request) -> int:
        """Estimate the work of a request in microseconds; 0 when it is little for its size."""

    def wait_turn(
        self, sender: Sender[Caller], steps: Iterator[None], rows: int, size: int = 0
    ) -> bool:
        """Let a request wait for its turn; return False when too many wait.

        `rows` are its rows, `size` the bytes of a request that is not decoded yet.
        """

    def was_decided_elsewhere(self, session: int, seq: int) -> bool:
        """Return whether a row of this request was already decided as a repeat."""

    def forward(
        self,
        sender: Sender[Caller],
        request: Request,
        part: Part,
        waited_ns: int | None = None,
    ) -> None:
        """Remember and send the answer of a part as soon as it is decided."""

    def answer(self, request: Request, verdicts: Results, rows: list[int] | None = None) -> Answer:
        """Make the answer for some rows of a request; None for all."""

    def members(self, seq: int) -> Members:
        """Return the members."""

    def rules(self, seq: int) -> bytes:
        """Return the encoded `Rules`."""

    def stats(self, seq: int) -> Stats:
        """Return the node's counters."""

    def peers(self, seq: int) -> Peers:
        """Return everything that this node has recorded of the members."""

    def listen(self, session: Caller) -> None:
        """Subscribe a client to the denials that end early."""

    def lend(self, session: Caller, borrow: LeaseRequest) -> LeaseGrant:
        """Grant a lease of a key, and settle earlier leases."""

    def asked(
        self, sender: Sender[Caller], request: Request, batch: Batch, rows: list[int] | None
    ) -> None:
        """Remember the keys of direct checks that are being answered."""

    def denied(self, session: Caller, batch: Batch, verdicts: Results) -> None:
        """Record the denials of a batch, for subscribers."""

    def unsettle(self, session: Caller) -> None:
        """Revoke all denials that a client may have cached from this node."""

    def reported(self, name: str, report: Report) -> None:
        """Count decisions that a client made itself; `name` is its token."""

    def throttled(self, seq: int, count: int) -> Throttled:
        """Return at most `count` keys that this node denied most."""

    def ask_to_leave(self) -> None:
        """Start to leave the cluster, as an operator asked."""

    def serve_peer(self, session: Caller, name: str, message: Message) -> None:
        """Answer a message of the member `name`, now or later."""

    def refused(self, cause: str) -> None:
        """Count a refusal."""

    def sent(self, session: Caller, size: int) -> None:
        """Count a message of `size` bytes in flight; sessions that do not read may be closed."""

    def repeated(self) -> None:
        """Count a repeated request that was not decided again."""

    def left(self, session: Caller) -> None:
        """Forget a connection that has ended."""
