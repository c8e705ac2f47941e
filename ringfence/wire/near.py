"""What lets a client decide some checks itself, as arrays.

Decides the layout of these messages. Both directions raise `BadMessage`; `codec` knows whose fault
that is.
"""

from collections.abc import Callable
from typing import TypeAlias

from ringfence.wire.bounds import MAX_COST, MAX_KEY, MAX_KEYS, MAX_LEASES, MIN_KEY
from ringfence.wire.fields import bad_field, integer, items
from ringfence.wire.near_messages import Borrow, CallIn, Lent, Lifted, Listen, SlotsFree

__all__ = ["NEAR_READERS", "Near", "lay_out_near"]

Near: TypeAlias = Listen | Lifted | Borrow | Lent | CallIn | SlotsFree
"""The messages of this module."""

_LISTEN = 31
_LIFTED = 32
_BORROW = 33
_LENT = 34
_CALL_IN = 35
_SLOTS_FREE = 38


def lay_out_near(message: Near) -> list[object]:
    """Put a message into its wire form."""
    match message:
        case Listen(seq):
            return [_LISTEN, seq]
        case Lifted(keys):
            return [_LIFTED, keys]
        case Borrow(seq, key, want, leases, spent):
            return [_BORROW, seq, key, want, leases, spent]
        case Lent(seq, lease, units, for_ns, limit, remaining, reset_after_ns):
            return [_LENT, seq, lease, units, for_ns, limit, remaining, reset_after_ns]
        case CallIn(keys):
            return [_CALL_IN, keys]
        case SlotsFree(tickets):
            return [_SLOTS_FREE, tickets]


def _read_lifted(fields: list[object]) -> Lifted:
    return Lifted(_keys(fields[1], "Lifted.keys"))


def _read_call_in(fields: list[object]) -> CallIn:
    return CallIn(_keys(fields[1], "CallIn.keys"))


def _read_slots_free(fields: list[object]) -> SlotsFree:
    tickets = items(fields[1], "SlotsFree.tickets", MAX_KEYS)
    if not tickets:
        raise bad_field("SlotsFree.tickets", "one ticket or more")
    return SlotsFree([integer(each, "SlotsFree.tickets", 1) for each in tickets])


def _read_borrow(fields: list[object]) -> Borrow:
    _, seq, key, want, leases, spent = fields
    message = Borrow(
        integer(seq, "Borrow.seq", 1),
        _key(key, "Borrow.key"),
        integer(want, "Borrow.want", 0, MAX_COST),
        [integer(one, "Borrow.leases", 1) for one in items(leases, "Borrow.leases", MAX_LEASES)],
        [
            integer(one, "Borrow.spent", 0, MAX_COST)
            for one in items(spent, "Borrow.spent", MAX_LEASES)
        ],
    )
    if len(message.leases) != len(message.spent):
        raise bad_field("Borrow.spent", "as long as Borrow.leases")
    return message


def _read_lent(fields: list[object]) -> Lent:
    _, seq, lease, units, for_ns, limit, remaining, reset_after_ns = fields
    message = Lent(
        integer(seq, "Lent.seq", 1),
        integer(lease, "Lent.lease"),
        integer(units, "Lent.units", 0, MAX_COST),
        integer(for_ns, "Lent.for_ns"),
        integer(limit, "Lent.limit"),
        integer(remaining, "Lent.remaining"),
        integer(reset_after_ns, "Lent.reset_after_ns"),
    )
    if bool(message.lease) != bool(message.units):
        raise bad_field("Lent.units", "0 exactly when there is no lease")
    return message


def _keys(wire: object, field: str) -> list[bytes]:
    return [_key(each, field) for each in items(wire, field, MAX_KEYS)]


def _key(wire: object, field: str) -> bytes:
    if type(wire) is bytes and MIN_KEY <= len(wire) <= MAX_KEY:
        return wire
    raise bad_field(field, f"byte strings of {MIN_KEY} to {MAX_KEY} bytes")


NEAR_READERS: dict[int, tuple[type[Near], int, Callable[[list[object]], Near]]] = {
    _LISTEN: (Listen, 2, lambda fields: Listen(integer(fields[1], "Listen.seq", 1))),
    _LIFTED: (Lifted, 2, _read_lifted),
    _BORROW: (Borrow, 6, _read_borrow),
    _LENT: (Lent, 8, _read_lent),
    _CALL_IN: (CallIn, 2, _read_call_in),
    _SLOTS_FREE: (SlotsFree, 2, _read_slots_free),
}
"""By type number: what it is, how many fields its array has, and how they are read."""
