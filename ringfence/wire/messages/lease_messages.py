"""The messages by which a client may decide some checks itself: denials that stand, and what
an owner has lent it.

Values only, as in `messages`, which names them all; `near` turns these into bytes and back.
"""

from dataclasses import dataclass

__all__ = [
    "LeaseRequest",
    "LeaseRecall",
    "LeaseGrant",
    "DenialRevoked",
    "SubscribeDenials",
    "SlotsFree",
]


@dataclass(frozen=True, slots=True)
class SubscribeDenials:
    """A client remembers denials from now on: tell it of those that end before their time.

    Answered by `Done`. A node that does not know this message closes the connection, and is asked
    no more.
    """

    seq: int


@dataclass(frozen=True, slots=True)
class DenialRevoked:
    """What the receiver was denied may pass again, although `retry_after` is not over."""

    keys: list[bytes]
    """Empty for all that the sender ever denied."""


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """Ask for units of a key to be spent by the sender alone, and tell what became of others."""

    seq: int
    key: bytes
    want: int
    """Most units that would be of use; 0 to ask for none."""
    leases: list[int]
    """Leases of this key that are over for the sender."""
    spent: list[int]
    """What was spent of each."""


@dataclass(frozen=True, slots=True)
class LeaseGrant:
    """The answer to `LeaseRequest`: what the sender may spend without asking."""

    seq: int
    lease: int
    """Names it in a later `LeaseRequest`; 0 when nothing was lent."""
    units: int
    for_ns: int
    """How long the lease lasts, from when it was asked for; when nothing was lent, how long
    asking again is of no use."""
    limit: int
    remaining: int
    """What is left for others."""
    reset_after_ns: int


@dataclass(frozen=True, slots=True)
class LeaseRecall:
    """Spend no more of these keys' leases, and tell what was spent."""

    keys: list[bytes]
    """Empty for all that the sender ever lent."""


@dataclass(frozen=True, slots=True)
class SlotsFree:
    """Slots are kept for the receiver's waiters: ask again under these tickets, within a second."""

    tickets: list[int]
