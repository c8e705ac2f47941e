"""What lets a client decide some checks itself, as arrays.

Decides the layout of these messages. Both directions raise `BadMessage`; `codec` knows whose fault
that is.
"""

from collections.abc import Callable
from typing import TypeAlias

from ringfence.wire.bounds import MAX_KEY, MAX_KEYS, MIN_KEY
from ringfence.wire.fields import bad_field, integer, items
from ringfence.wire.near_messages import Lifted, Listen

__all__ = ["NEAR_READERS", "Near", "lay_out_near"]

Near: TypeAlias = Listen | Lifted
"""The messages of this module."""

_LISTEN = 29
_LIFTED = 30


def lay_out_near(message: Near) -> list[object]:
    """Put a message into its wire form."""
    match message:
        case Listen(seq):
            return [_LISTEN, seq]
        case Lifted(keys):
            return [_LIFTED, keys]


def _read_lifted(fields: list[object]) -> Lifted:
    keys = items(fields[1], "Lifted.keys", MAX_KEYS)
    return Lifted([_key(each, "Lifted.keys") for each in keys])


def _key(wire: object, field: str) -> bytes:
    if type(wire) is bytes and MIN_KEY <= len(wire) <= MAX_KEY:
        return wire
    raise bad_field(field, f"byte strings of {MIN_KEY} to {MAX_KEY} bytes")


NEAR_READERS: dict[int, tuple[type[Near], int, Callable[[list[object]], Near]]] = {
    _LISTEN: (Listen, 2, lambda fields: Listen(integer(fields[1], "Listen.seq", 1))),
    _LIFTED: (Lifted, 2, _read_lifted),
}
"""By type number: what it is, how many fields its array has, and how they are read."""
