"""Gossip datagrams that carry their message as a value, for runs with thousands of members."""

from gossip import Message, decode, encode
from gossip.datagrams.seal import MAX_DATAGRAM, Rejected

__all__ = ["PlainDatagrams"]

_ENCODED = 16
_FORM = b"\x01 a message as a value"


class _Parcel(bytes):
    """Datagram of a message that was not encoded."""

    message: Message


class PlainDatagrams:
    """Neither encodes nor seals, but for every 16th message, which the codec must return."""

    def __init__(self) -> None:
        self.count = 0
        """Datagrams packed so far, of all nodes."""

    def pack(self, message: Message) -> bytes:
        """Return a datagram that carries the message itself."""
        self.count += 1
        if not self.count % _ENCODED:
            _check_codec(message)
        parcel = _Parcel(_FORM)
        parcel.message = message
        return parcel

    def unpack(self, datagram: bytes) -> Message:
        """Return the message; a corrupt datagram carries none."""
        if not isinstance(datagram, _Parcel):
            raise Rejected("unauthentic")
        return datagram.message


def _check_codec(message: Message) -> None:
    encoded = encode(message)
    if len(encoded) > MAX_DATAGRAM:
        raise ValueError(f"a {type(message).__name__} takes {len(encoded)} bytes")
    if decode(encoded) != message:
        raise ValueError(f"the codec does not return {message}")
