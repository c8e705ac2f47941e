"""Messages that let a client decide some checks itself: cached denials and leases."""

from msgspec import Struct

__all__ = [
    "UNKNOWN_LEASE",
    "LeaseRequest",
    "LeaseRecall",
    "LeaseGrant",
    "DenialRevoked",
    "SubscribeDenials",
    "SlotsFree",
]


class SubscribeDenials(Struct, frozen=True):
    """Request of a client with a denial cache to receive `DenialRevoked` messages.

    Answered by `Done`.
    """

    seq: int


class DenialRevoked(Struct, frozen=True):
    """Notice to a client: some denied keys may be allowed again before their `retry_after`."""

    keys: list[bytes]
    """Empty for all keys that the sender has denied."""


UNKNOWN_LEASE = (1 << 63) - 1
"""Number that stands for all other leases of a key in a `LeaseRequest`. The process of the sender
did not receive their grants, so it spent no unit of them."""


class LeaseRequest(Struct, frozen=True):
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


class LeaseGrant(Struct, frozen=True):
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


class LeaseRecall(Struct, frozen=True):
    """Recall of leases: the client must stop spending their units and report the spent ones."""

    keys: list[bytes]
    """Empty for all leases of the sender."""


class SlotsFree(Struct, frozen=True):
    """Notice to a client: slots of concurrency limits are reserved for its waiting checks.

    The client must repeat these checks within a second.
    """

    tickets: list[int]
    """Tickets of the waiting checks, as in `Request.slot_ids`."""
