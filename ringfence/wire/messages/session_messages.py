"""Messages that begin, keep up and end a session between two sides of a connection."""

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Goodbye", "Hello", "Ping", "Pong", "Refused", "Role", "Welcome"]


class Role(StrEnum):
    """Who says hello."""

    NODE = "node"
    CLIENT = "client"


@dataclass(frozen=True, slots=True)
class Hello:
    """First message on a connection, from the side that opened it."""

    role: Role
    name: str
    """Node name, or the name of the client's token."""
    credential: bytes
    """For a node: proof of the cluster key. For a client: its token's secret. At most 64 bytes."""
    session: int
    """64-bit random id, new for each link of a process; with `seq` it names a request for good."""


@dataclass(frozen=True, slots=True)
class Welcome:
    """The answer to a good `Hello`."""

    name: str
    """The node's name."""
    view: int
    """64-bit hash of the members the node sees."""
    rules: int
    """Version of the node's rules: higher is newer."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A request or hello that was not served, and why. `seq` 0 answers the connection itself; all
    other messages count from 1."""

    seq: int
    code: int
    """An `ErrorCode`."""
    reason: str
    """What is wrong and how to mend it; cut at 500 characters."""


@dataclass(frozen=True, slots=True)
class Ping:
    """Are you there?"""

    seq: int


@dataclass(frozen=True, slots=True)
class Pong:
    """I am."""

    seq: int


@dataclass(frozen=True, slots=True)
class Goodbye:
    """The sender is draining: finish what is in flight and ask elsewhere."""

    reason: str
    """For people; cut at 500 characters."""
