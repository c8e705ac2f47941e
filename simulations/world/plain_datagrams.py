"""Gossip datagrams that carry messages without encoding, for runs with thousands of members."""

from collections import OrderedDict
from collections.abc import Sequence

from gossip import BadDatagram, Message, Record, decode, encode
from gossip.datagrams.seal import MAX_DATAGRAM, Rejected

__all__ = ["PlainDatagrams"]

_ENCODED = 16
_RECORDS = b"records "
_MAX_EXCHANGES = 2048
_FORM = b"\x01 a message as a value"


class _Parcel(bytes):
    """Datagram in memory that refers to a message, which was not encoded."""

    message: Message


class PlainDatagrams:
    """Codec of gossip messages that skips encoding and encryption, but tests the real codec on
    every 16th message."""

    def __init__(self) -> None:
        self._count = 0
        self._records: OrderedDict[bytes, list[Record]] = OrderedDict()
        """Records of the latest exchanges, by the bytes that represent them."""

    def pack(self, message: Message) -> bytes:
        """Return a datagram that refers to the message itself."""
        self._count += 1
        if not self._count % _ENCODED:
            _check_codec(message)
        parcel = _Parcel(_FORM)
        parcel.message = message
        return parcel

    def unpack(self, datagram: bytes) -> Message:
        """Return the message to which a datagram refers, or None if the datagram is corrupt."""
        if not isinstance(datagram, _Parcel):
            raise Rejected("unauthentic")
        return datagram.message

    def pack_records(self, records: Sequence[Record]) -> bytes:
        """Return bytes that identify the membership records of an exchange, instead of encoding
        them."""
        self._count += 1
        packed = _RECORDS + self._count.to_bytes(8, "big")
        self._records[packed] = [*records]
        if len(self._records) > _MAX_EXCHANGES:
            self._records.popitem(last=False)
        return packed

    def unpack_records(self, packed: bytes) -> list[Record]:
        """Return the membership records of an exchange from the bytes that identify them.

        Records of an old exchange are no longer available.
        """
        if packed not in self._records:
            raise BadDatagram("malformed", "an exchange that is not known")
        return self._records[packed]


def _check_codec(message: Message) -> None:
    encoded = encode(message)
    if len(encoded) > MAX_DATAGRAM:
        raise ValueError(f"a {type(message).__name__} takes {len(encoded)} bytes")
    if decode(encoded) != message:
        raise ValueError(f"the codec does not return  {message}")
