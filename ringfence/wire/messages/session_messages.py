"""Messages that start, check and end the session of a connection."""

from enum import StrEnum

from msgspec import Struct

__all__ = ["Goodbye", "Hello", "Ping", "Pong", "Refused", "Role", "Welcome"]


class Role(StrEnum):
    """Kind of program that opens a connection: node or client."""

    NODE = "node"
    CLIENT = "client"


class Hello(Struct, frozen=True):
    """First message on a connection, sent by the program that opened it."""

    role: Role
    name: str
    """Node name, or the name of the client's token."""
    credential: bytes
    """For a node: proof of the cluster key. For a client: its token's secret. At most 64 bytes."""
    session: int
    """64-bit random id, new for each link of a process; with `seq` it identifies a request."""


class Welcome(Struct, frozen=True):
    """Answer to a valid `Hello`, after which requests are accepted."""

    name: str
    """The node's name."""
    view: int
    """64-bit hash of the members that the node sees."""
    rules: int
    """Version of the node's rules: higher is newer."""


class Refused(Struct, frozen=True):
    """Refusal of a request or a `Hello` message, with the reason.

    `seq` is 0 for a `Hello` or the whole connection; requests count from 1.
    """

    seq: int
    code: int
    """An `ErrorCode`."""
    reason: str
    """The problem and how to fix it, at most 500 characters."""


class Ping(Struct, frozen=True):
    """Message that asks whether the peer is alive."""

    seq: int


class Pong(Struct, frozen=True):
    """Answer to `Ping`: the sender is alive."""

    seq: int


class Goodbye(Struct, frozen=True):
    """Notice that the sending node is draining: it accepts no new requests."""

    reason: str
    """Text for operators, at most 500 characters."""
