"""Messages that let a client decide some checks itself: cached denials and leases."""

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
    """Request of a client with a denial cache to receive `DenialRevoked` messages.

    Answered by `Done`.
    """

    seq: int


@dataclass(frozen=True, slots=True)
class DenialRevoked:
    """Notice to a client: some denied keys may be allowed again before their `retry_after`."""

    keys: list[bytes]
    """Empty for all keys that the sender has denied."""


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """Request of a client for a lease: units of a key that only this client may spend. Also
    returns finished leases."""

    seq: int
    key: bytes
    want: int
    """Maximum number of units that the sender can use; 0 to request none."""
    leases: list[int]
    """Finished leases of this key."""
    spent: list[int]
    """Units spent of each finished lease."""


@dataclass(frozen=True, slots=True)
class LeaseGrant:
    """Answer to `LeaseRequest`: units of a key that the client may spend without asking the
    key's owner."""

    seq: int
    lease: int
    """Identifies the lease in a later `LeaseRequest`; 0 without a lease."""
    units: int
    for_ns: int
    """Duration of the lease, from the time of its request. Without a lease: time until a
    new request makes sense."""
    limit: int
    remaining: int
    """Units that remain for other clients."""
    reset_after_ns: int


@dataclass(frozen=True, slots=True)
class LeaseRecall:
    """Recall of leases: the client must stop spending their units and report the spent ones."""

    keys: list[bytes]
    """Empty for all leases of the sender."""


@dataclass(frozen=True, slots=True)
class SlotsFree:
    """Notice to a client: slots of concurrency limits are reserved for its waiting checks.

    The client must repeat these checks within a second.
    """

    tickets: list[int]
    """Tickets of the waiting checks, as in `Request.slot_ids`."""
