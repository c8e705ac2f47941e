"""Encoding of gRPC in HTTP/2: framed messages, time-outs, and errors as trailers."""

from enum import IntEnum
from functools import lru_cache
from string import punctuation
from urllib.parse import quote

from ringfence.gateway.grpc.http2 import Request
from ringfence.gateway.grpc.http2_sender import STATUS_200, field

__all__ = [
    "HEADER",
    "NOT_GRPC",
    "OK",
    "PREFIX",
    "Refusal",
    "Status",
    "framed",
    "message_of",
    "timeout_of",
    "trailers_of",
]

_LONGEST_TIMEOUT = 24 * 3600.0
"""Maximum `grpc-timeout` in seconds; longer ones are shortened."""
PREFIX = 5
"""Size of the prefix of a message: compression flag and length."""
HEADER = STATUS_200 + field(b"content-type", b"application/grpc")
_PLAIN = punctuation.replace("%", "") + " "
OK = field(b"grpc-status", b"0")
NOT_GRPC = b"\x08\x03415" + field(b"content-type", b"text/plain")
"""`:status: 415`, for a request that is HTTP/2 but not gRPC."""
_UNITS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
"""Units of `grpc-timeout` in seconds."""


class Status(IntEnum):
    """Status codes that this server sends, with gRPC's numbers."""

    OK = 0
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


class Refusal(Exception):
    """Exception that ends a call with a gRPC status other than OK."""

    def __init__(self, status: Status, why: str) -> None:
        super().__init__(why)
        self.status = status


def message_of(request: Request) -> bytes | None:
    """Extract the gRPC message from a request body; None if it is not gRPC. Raises `Refusal`."""
    head, body = request.head, request.body
    kind = head.fields.get("content-type", "")
    if head.method != "POST" or not kind.startswith("application/grpc"):
        return None
    if len(body) < PREFIX or len(body) != PREFIX + int.from_bytes(body[1:PREFIX], "big"):
        raise Refusal(Status.INTERNAL, "a call takes exactly one message")
    if body[0]:
        raise Refusal(
            Status.UNIMPLEMENTED, "compressed messages are not supported; send them uncompressed"
        )
    return body[PREFIX:]


@lru_cache(256)
def timeout_of(text: str | None) -> float | None:
    """Parse the header `grpc-timeout`, in seconds; None if it is absent. Raises `Refusal`."""
    if text is None:
        return None
    amount, unit = text[:-1], _UNITS.get(text[-1:])
    if unit is None or not amount.isdecimal() or len(amount) > 8:
        why = f"grpc-timeout must be up to 8 digits and a unit, got {text[:20]!r}; send e.g. 20m"
        raise Refusal(Status.INVALID_ARGUMENT, why)
    return min(int(amount) * unit, _LONGEST_TIMEOUT)


def framed(message: bytes) -> bytes:
    """Add the prefix of an uncompressed message."""
    return b"\x00" + len(message).to_bytes(4, "big") + message


def trailers_of(refusal: Refusal) -> bytes:
    """Encode the status and message of an error as a trailer block, without header fields."""
    status = field(b"grpc-status", str(int(refusal.status)).encode())
    return status + field(b"grpc-message", _percent_encoded(str(refusal)[:1000]))


def _percent_encoded(text: str) -> bytes:
    """Percent-encode a status message for a gRPC header."""
    return quote(text, safe=_PLAIN).encode()
