"""Errors of the wire protocol: error codes, and the causes by which invalid messages are counted.

The caller closes the connection, counts and logs.
"""

from enum import IntEnum, StrEnum

from ringfence.errors import RemoteProtocolError

__all__ = ["BadMessage", "Cause", "ErrorCode", "WrongVersion"]


class ErrorCode(IntEnum):
    """Reasons why a request, a `Hello` message or a whole connection is refused.

    `Refused.code` and the code of a QUIC application close use these numbers. A receiver treats an
    unknown number as `INTERNAL`.
    """

    OK = 0
    """No error: the connection closes because it is no longer needed."""
    BAD_MESSAGE = 1
    """The bytes are not a message of this protocol."""
    WRONG_VERSION = 2
    """The two sides use different versions of the protocol."""
    BAD_CREDENTIAL = 3
    """The cluster key's proof or the token is wrong, or no token has that name."""
    NOT_PERMITTED = 4
    """The credential is valid, but its scopes do not permit the request."""
    TOO_LARGE = 5
    """The answer does not fit into one message."""
    OVERLOADED = 6
    """A bounded queue is full. Ask another node, or the same node later."""
    DRAINING = 7
    """The node is leaving the cluster: ask another node."""
    INTERNAL = 8
    """The node has an internal error; its log has the details."""
    HELLO_EXPECTED = 9
    """The first message was not a `Hello`, or a later one was."""
    HELLO_TIMEOUT = 10
    """No `Hello` arrived in time."""
    NOT_HERE = 11
    """The node cannot decide these keys and will not forward them again: its view of the members
    differs from the sender's."""
    TOO_LATE = 12
    """The request's deadline passed before it could be decided; nothing was charged."""
    IDLE = 13
    """The peer sent nothing for the idle time-out."""


class Cause(StrEnum):
    """Kinds of invalid messages (`BadMessage`); there are few, so each can be a label of a
    metric."""

    EMPTY = "empty"
    """A frame, or a message, of no bytes."""
    OVERSIZED = "oversized"
    """A frame or message larger than `MAX_MESSAGE`."""
    GARBLED = "garbled"
    """The payload is not exactly one msgpack value, or its lengths are too large."""
    UNKNOWN_TYPE = "unknown_type"
    """No message has this type number."""
    BAD_SHAPE = "bad_shape"
    """The array has the wrong number of fields."""
    BAD_FIELD = "bad_field"
    """One field has the wrong type or is out of its range."""
    WRONG_VERSION = "wrong_version"
    """The peer uses another protocol version."""


class BadMessage(RemoteProtocolError):
    """Error for bytes of the peer that are not a valid message; the connection must be closed."""

    code = ErrorCode.BAD_MESSAGE
    """Code with which the receiver closes the connection."""

    def __init__(self, cause: Cause | str, reason: str) -> None:
        super().__init__(cause, reason)
        self.cause = Cause(cause)
        self.reason = reason
        """The error, with message and field; contains no text or bytes of the sender."""

    def __str__(self) -> str:
        return self.reason


class WrongVersion(BadMessage):
    """Error for a peer that uses another version of the protocol."""

    code = ErrorCode.WRONG_VERSION

    def __init__(self, ours: int, theirs: int) -> None:
        super().__init__(
            Cause.WRONG_VERSION,
            f"the version of the wire protocol must be {ours}, got {theirs}; "
            "run the same Ringfence release on both sides",
        )
        self.args = (ours, theirs)
        self.ours = ours
        self.theirs = theirs
