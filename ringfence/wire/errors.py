"""What can be wrong with bytes from the other side, and the codes by which we say so.

Decides the numbers of the wire's error codes and the causes that refusals are counted by. Closing
the connection, counting and logging are the caller's.
"""

from enum import IntEnum, StrEnum

from ringfence.errors import RemoteProtocolError

__all__ = ["BadMessage", "Cause", "ErrorCode", "WrongVersion"]


class ErrorCode(IntEnum):
    """Why a request, a hello or a whole connection was refused.

    The same numbers stand in `Refused.code` and in the code of a QUIC application close. A receiver
    treats a number it does not know as `INTERNAL`.
    """

    OK = 0
    """Nothing is wrong: the connection closes because it is no longer needed."""
    BAD_MESSAGE = 1
    """Bytes that are no message of this protocol."""
    WRONG_VERSION = 2
    """The two sides speak different versions of the protocol."""
    BAD_CREDENTIAL = 3
    """The cluster key's proof or the token is wrong, or no token has that name."""
    NOT_PERMITTED = 4
    """The credential is good, but its scopes do not cover what was asked."""
    TOO_LARGE = 5
    """What was asked for does not fit into one message."""
    OVERLOADED = 6
    """A queue with a bound is full; another node, or the same one later, may answer."""
    DRAINING = 7
    """The node is leaving: ask another one."""
    INTERNAL = 8
    """The node has a bug; its log tells more."""
    HELLO_EXPECTED = 9
    """Something other than a `Hello` came first, or a second one came."""
    HELLO_TIMEOUT = 10
    """No `Hello` came in time."""
    NOT_HERE = 11
    """Keys of this ring are not decided in the receiver's data center."""
    TOO_LATE = 12
    """The request's deadline passed before it could be decided; nothing was charged."""
    IDLE = 13
    """The peer went silent for too long."""


class Cause(StrEnum):
    """Kinds of `BadMessage`, few enough to be the labels of a counter."""

    EMPTY = "empty"
    """A frame, or a message, of no bytes."""
    OVERSIZED = "oversized"
    """A frame or message larger than `MAX_MESSAGE`."""
    GARBLED = "garbled"
    """The payload is not exactly one msgpack value, or one with absurd lengths."""
    UNKNOWN_TYPE = "unknown_type"
    """No message has this type number."""
    BAD_SHAPE = "bad_shape"
    """The array has the wrong number of fields."""
    BAD_FIELD = "bad_field"
    """One field has the wrong type or is out of its range."""
    WRONG_VERSION = "wrong_version"
    """The other side speaks another version."""


class BadMessage(RemoteProtocolError):
    """The other side sent bytes that are no message; their connection is of no more use."""

    code = ErrorCode.BAD_MESSAGE
    """What to close the connection with."""

    def __init__(self, cause: Cause, reason: str) -> None:
        super().__init__(reason)
        self.cause = cause
        self.reason = reason
        """What is wrong, naming message and field; holds none of the sender's bytes."""


class WrongVersion(BadMessage):
    """The other side speaks another version of the protocol."""

    code = ErrorCode.WRONG_VERSION

    def __init__(self, ours: int, theirs: int) -> None:
        super().__init__(
            Cause.WRONG_VERSION,
            f"we speak version {ours} of the wire protocol, the other side version {theirs}: "
            "run the same Ringfence release on both",
        )
        self.ours = ours
        self.theirs = theirs
