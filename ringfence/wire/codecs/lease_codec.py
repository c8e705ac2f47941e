"""Encoding and decoding of messages about leases and denial subscriptions. Invalid messages raise
`BadMessage`.
"""

from collections.abc import Callable
from typing import TypeAlias

from ringfence.wire.bounds import MAX_COST, MAX_KEY, MAX_KEYS, MAX_LEASES, MIN_KEY
from ringfence.wire.codecs.fields import bad_field, integer, items
from ringfence.wire.messages.lease_messages import (
    DenialRevoked,
    LeaseGrant,
    LeaseRecall,
    LeaseRequest,
    SlotsFree,
    SubscribeDenials,
)

__all__ = ["LEASE_READERS", "LeaseMessage", "encode_lease_message"]

LeaseMessage: TypeAlias = (
    SubscribeDenials | DenialRevoked | LeaseRequest | LeaseGrant | LeaseRecall | SlotsFree
)
"""Messages of this module."""

_SUBSCRIBE_DENIALS = 31
_DENIAL_REVOKED = 32
_LEASE_REQUEST = 33
_LEASE_GRANT = 34
_LEASE_RECALL = 35
_SLOTS_FREE = 38


def encode_lease_message(message: LeaseMessage) -> list[object]:
    """Convert a lease or subscription message to the list of its fields."""
    match message:
        case SubscribeDenials(seq):
            return [_SUBSCRIBE_DENIALS, seq]
        case DenialRevoked(keys):
            return [_DENIAL_REVOKED, keys]
        case LeaseRequest(seq, key, want, leases, spent):
            return [_LEASE_REQUEST, seq, key, want, leases, spent]
        case LeaseGrant(seq, lease, units, for_ns, limit, remaining, reset_after_ns):
            return [_LEASE_GRANT, seq, lease, units, for_ns, limit, remaining, reset_after_ns]
        case LeaseRecall(keys):
            return [_LEASE_RECALL, keys]
        case SlotsFree(tickets):
            return [_SLOTS_FREE, tickets]


def _read_denial_revoked(fields: list[object]) -> DenialRevoked:
    return DenialRevoked(_keys(fields[1], "DenialRevoked.keys"))


def _read_lease_recall(fields: list[object]) -> LeaseRecall:
    return LeaseRecall(_keys(fields[1], "LeaseRecall.keys"))


def _read_slots_free(fields: list[object]) -> SlotsFree:
    tickets = items(fields[1], "SlotsFree.tickets", MAX_KEYS)
    if not tickets:
        raise bad_field("SlotsFree.tickets", "one ticket or more")
    return SlotsFree([integer(each, "SlotsFree.tickets", 1) for each in tickets])


def _read_lease_request(fields: list[object]) -> LeaseRequest:
    _, seq, key, want, leases, spent = fields
    message = LeaseRequest(
        integer(seq, "LeaseRequest.seq", 1),
        _key(key, "LeaseRequest.key"),
        integer(want, "LeaseRequest.want", 0, MAX_COST),
        [
            integer(one, "LeaseRequest.slot_ids", 1)
            for one in items(leases, "LeaseRequest.slot_ids", MAX_LEASES)
        ],
        [
            integer(one, "LeaseRequest.spent", 0, MAX_COST)
            for one in items(spent, "LeaseRequest.spent", MAX_LEASES)
        ],
    )
    if len(message.leases) != len(message.spent):
        raise bad_field("LeaseRequest.spent", "as long as LeaseRequest.slot_ids")
    return message


def _read_lease_grant(fields: list[object]) -> LeaseGrant:
    _, seq, lease, units, for_ns, limit, remaining, reset_after_ns = fields
    message = LeaseGrant(
        integer(seq, "LeaseGrant.seq", 1),
        integer(lease, "LeaseGrant.lease"),
        integer(units, "LeaseGrant.units", 0, MAX_COST),
        integer(for_ns, "LeaseGrant.for_ns"),
        integer(limit, "LeaseGrant.limit"),
        integer(remaining, "LeaseGrant.remaining"),
        integer(reset_after_ns, "LeaseGrant.reset_after_ns"),
    )
    if bool(message.lease) != bool(message.units):
        raise bad_field("LeaseGrant.units", "0 exactly when there is no lease")
    return message


def _keys(wire: object, field: str) -> list[bytes]:
    return [_key(each, field) for each in items(wire, field, MAX_KEYS)]


def _key(wire: object, field: str) -> bytes:
    if type(wire) is bytes and MIN_KEY <= len(wire) <= MAX_KEY:
        return wire
    raise bad_field(field, f"byte strings of {MIN_KEY} to {MAX_KEY} bytes")


LEASE_READERS: dict[int, tuple[type[LeaseMessage], int, Callable[[list[object]], LeaseMessage]]] = {
    _SUBSCRIBE_DENIALS: (
        SubscribeDenials,
        2,
        lambda fields: SubscribeDenials(integer(fields[1], "SubscribeDenials.seq", 1)),
    ),
    _DENIAL_REVOKED: (DenialRevoked, 2, _read_denial_revoked),
    _LEASE_REQUEST: (LeaseRequest, 6, _read_lease_request),
    _LEASE_GRANT: (LeaseGrant, 8, _read_lease_grant),
    _LEASE_RECALL: (LeaseRecall, 2, _read_lease_recall),
    _SLOTS_FREE: (SlotsFree, 2, _read_slots_free),
}
"""Message class, number of fields and reader function of each message, by type number."""
