"""Encoding of gossip messages and membership records as msgpack arrays.

The decoder is strict: it rejects everything that `encode` would not write. `seal` encrypts.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import isfinite
from typing import assert_never

import msgpack

from gossip.datagrams.messages import Ack, Gossip, Message, Nack, Ping, PingReq
from gossip.members.record import MAX_NAME, Record, Status

__all__ = [
    "BadDatagram",
    "MAX_MESSAGE",
    "MAX_OWN_RECORD",
    "MAX_RECORD",
    "decode",
    "encode",
    "pack_records",
    "record_size",
    "room_for_updates",
    "unpack_records",
]

MAX_MESSAGE = 1130
"""Maximum bytes of a message before sealing, which adds at most 48."""
MAX_RECORD = 700
"""Maximum bytes of one record; a message must have room for a long one."""
MAX_OWN_RECORD = 440
"""Maximum bytes of a member's own record; the name of an accuser may be added to it."""
_MAX_RECORDS = 4096
_MAX_U64 = (1 << 64) - 1
_PING, _ACK, _PING_REQ, _NACK, _GOSSIP = range(1, 6)
_RECORD_FIELDS = 12
_LENGTHS = {_PING: 6, _ACK: 7, _PING_REQ: 7, _NACK: 4, _GOSSIP: 3}


class BadDatagram(ValueError):
    """Error for bytes that are not a valid gossip message, or exceed one of its bounds."""

    def __init__(self, cause: str, reason: str) -> None:
        super().__init__(reason)
        self.cause = cause
        """Short name of the reason, for counters."""


def encode(message: Message) -> bytes:
    """Encode a gossip message. Raises `ValueError` when it is larger than `MAX_MESSAGE`."""
    data = b"".join(
        [_counted(1 + len(message.updates)), _head(message), *map(_packed, message.updates)]
    )
    if len(data) > MAX_MESSAGE:
        raise ValueError(f"message must have at most {MAX_MESSAGE} bytes, got {len(data)}")
    return data


def decode(data: bytes) -> Message:
    """Decode a gossip message. Raises only `BadDatagram`."""
    if len(data) > MAX_MESSAGE:
        raise BadDatagram("oversized", f"a message of {len(data)} bytes")
    head, *rest = _values(data) or [None]
    if type(head) is not list or not head:
        raise BadDatagram("malformed", "a message without a head")
    if type(head[0]) is not int or head[0] not in _LENGTHS or len(head) != _LENGTHS[head[0]]:
        raise BadDatagram("unknown_message", "a message of an unknown type")
    updates = tuple([_record(fields) for fields in rest])
    sender, generation = _text(head[1]), _integer(head[2])
    match head[0]:
        case 1:
            _, _, _, seq, target, digest = head
            fields = _integer(seq), _text(target), _integer(digest)
            return Ping(sender, generation, *fields, updates)
        case 2:
            _, _, _, *numbers = head
            seq, digest, stamp, delay = map(_integer, numbers)
            return Ack(sender, generation, seq, digest, stamp, delay, updates)
        case 3:
            _, _, _, seq, target, host, port = head
            address = _text(host), _integer(port, 65_535)
            return PingReq(sender, generation, _integer(seq), _text(target), address, updates)
        case 4:
            return Nack(sender, generation, _integer(head[3]), updates)
        case _:
            return Gossip(sender, generation, updates)


def room_for_updates(message: Message) -> int:
    """Return the number of bytes left in a gossip message for piggybacked membership records."""
    return MAX_MESSAGE - len(_head(message)) - len(_counted(MAX_MESSAGE))


def record_size(record: Record) -> int:
    """Return the encoded size of a membership record in bytes."""
    return len(_packed(record))


def pack_records(records: Sequence[Record]) -> bytes:
    """Encode the member list of a full exchange."""
    return b"".join([_counted(len(records)), *map(_packed, records)])


def unpack_records(data: bytes) -> list[Record]:
    """Decode the member list of a full exchange. Raises `BadDatagram`."""
    values = _values(data)
    if len(values) > _MAX_RECORDS:
        raise BadDatagram("oversized", f"{len(values)} members, above {_MAX_RECORDS}")
    return [_record(fields) for fields in values]


def _head(message: Message) -> bytes:
    head: list[object]
    match message:
        case Ping(sender, generation, seq, target, digest):
            head = [_PING, sender, generation, seq, target, digest]
        case Ack(sender, generation, seq, digest, stamp, delay):
            head = [_ACK, sender, generation, seq, digest, stamp, delay]
        case PingReq(sender, generation, seq, target, (host, port)):
            head = [_PING_REQ, sender, generation, seq, target, host, port]
        case Nack(sender, generation, seq):
            head = [_NACK, sender, generation, seq]
        case Gossip(sender, generation):
            head = [_GOSSIP, sender, generation]
        case _:
            assert_never(message)
    packed: bytes = msgpack.packb(head)
    return packed


@lru_cache(maxsize=8192)
def _packed(record: Record) -> bytes:
    packed: bytes = msgpack.packb(
        [
            record.name,
            record.host,
            record.port,
            record.datacenter,
            record.zone,
            float(record.weight),
            record.generation,
            record.incarnation,
            int(record.status),
            record.forward_only,
            record.version,
            record.accuser,
        ]
    )
    return packed


def _counted(length: int) -> bytes:
    header: bytes = msgpack.Packer().pack_array_header(length)
    return header


def _values(data: bytes) -> list[object]:
    try:
        values: object = msgpack.unpackb(data, max_array_len=2 * _MAX_RECORDS)
    except (ValueError, msgpack.UnpackException) as error:
        raise BadDatagram("malformed", "bytes that are not exactly one msgpack value") from error
    if type(values) is not list:
        raise BadDatagram("malformed", "a msgpack value that is not an array")
    return values


def _record(fields: object) -> Record:
    if type(fields) is not list or len(fields) != _RECORD_FIELDS:
        raise BadDatagram("malformed", f"a record without its {_RECORD_FIELDS} fields")
    name, host, port, datacenter, zone, weight, *rest = fields
    generation, incarnation, status, forward_only, version, accuser = rest
    if type(weight) is not float or not isfinite(weight) or not 0.25 <= weight <= 4.0:
        raise BadDatagram("bad_field", "a weight outside 0.25 to 4")
    if forward_only is not True and forward_only is not False:
        raise BadDatagram("bad_field", "a flag that is neither true nor false")
    if not name or not datacenter:
        raise BadDatagram("bad_field", "a member without a name or data center")
    record = Record(
        _text(name),
        _text(host),
        _integer(port, 65_535),
        _text(datacenter),
        _text(zone),
        weight,
        _integer(generation),
        _integer(incarnation, (1 << 32) - 1),
        Status(_integer(status, Status.LEFT)),
        forward_only,
        _text(version),
        _text(accuser),
    )
    if record_size(record) > MAX_RECORD:
        raise BadDatagram("oversized", f"a record above {MAX_RECORD} bytes")
    return record


def _text(value: object) -> str:
    if type(value) is str and len(value) <= MAX_NAME and value.isprintable():
        return value
    raise BadDatagram("bad_field", "a value that is not a printable text of valid length")


def _integer(value: object, most: int = _MAX_U64) -> int:
    if type(value) is int and 0 <= value <= most:
        return value
    raise BadDatagram("bad_field", f"a value that is not a whole number from 0 to {most}")
