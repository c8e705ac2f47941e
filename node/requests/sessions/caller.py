"""Interface of a connected client or member for other parts of the node."""

from typing import Protocol

from ringfence.wire import ErrorCode, Message, Refused

__all__ = ["INTERNAL_ERROR", "Caller", "internal_refusal"]

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
        """Whether the connection of this client or member has ended."""

    @property
    def process(self) -> object:
        """Identity of the process that sends, which stays the same when it connects again."""

    @property
    def unsent(self) -> int:
        """Number of bytes that were sent to the caller and not acknowledged."""

    def send(self, message: Message) -> None:
        """Send a message to the caller."""

    def send_payload(self, payload: bytes) -> None:
        """Send an encoded message; close the connection when too much is unacknowledged."""

    def spent(self, key: bytes, units: int) -> None:
        """Record units that this client has spent from a lease, because it may refund at most what
        it spent."""

    def returned(self, key: bytes, units: int) -> int:
        """Remove units of a lease from those that `spent` recorded, because the client has not
        spent them; return how many of them the client has not refunded already."""

    def close(self, code: ErrorCode, reason: str) -> None:
        """Close the connection with an error code and a reason."""

    def give_up(self) -> None:
        """Close the connection because the peer does not read."""
