"""The request headers on one HTTP/2 connection, and the errors that a connection ends with.

Decoding a header takes longer than the rest of a request, and callers send the same header again
and again: as references to a table that both ends keep. Small headers of this kind are cached until
that table changes.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from hpack import Decoder, HPACKError, OversizedHeaderListError

__all__ = ["Broken", "Failure", "HeaderBlock", "HeaderBlocks"]

_CACHED, _LARGEST_CACHED = 16, 1024
"""Headers in the cache, and bytes of the largest of them."""
_REFERENCE = 0x80
"""A byte of at least this is a reference to a field as a whole (RFC 7541, section 6.1)."""
_PSEUDO = frozenset((b":method", b":scheme", b":path", b":authority"))
_KEPT = frozenset((b"content-type", b"content-length", b"authorization", b"grpc-timeout"))
"""The fields that the gateway reads. All others are checked and dropped."""
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]+")
_CONNECTION_FIELDS = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade")
)
_THREE_SIZE_UPDATES = re.compile(rb"(?:[\x20-\x3e]|\x3f[\x80-\xff]*[\x00-\x7f]){3}")
"""RFC 7541, section 4.2, lets a block begin with at most two."""


class Failure(IntEnum):
    """HTTP/2's error codes, those that we send."""

    NONE = 0
    PROTOCOL = 1
    FLOW_CONTROL = 3
    STREAM_CLOSED = 5
    FRAME_SIZE = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION = 9
    ENHANCE_YOUR_CALM = 11


class Broken(Exception):
    """The connection cannot go on."""

    def __init__(self, failure: Failure, why: str) -> None:
        super().__init__(why)
        self.failure = failure


@dataclass(frozen=True, slots=True)
class HeaderBlock:
    """What a request's header says; many requests share one."""

    method: str
    path: str
    fields: dict[str, str]
    """The fields that the gateway reads, by name, the lines of one name joined by commas."""
    size: int


class HeaderBlocks:
    """Reads the headers of one connection, which must be read in order and none left out."""

    def __init__(self, largest: int) -> None:
        self.decoded = 0
        """Bytes that were decoded so far: what the work was."""
        self._decoder = Decoder(largest)
        self._known: dict[bytes, HeaderBlock] = {}
        """Blocks made of nothing but references to the decoder's table, which is as it was."""

    def read(self, block: bytes) -> HeaderBlock | None:
        """Read a request's header; None for a malformed one. Raises `Broken`."""
        known = self._known.get(block)
        if known is not None:
            return known
        head = _head_of(self._decode(block))
        if (
            head is not None
            and head.size <= _LARGEST_CACHED
            and min(block) >= _REFERENCE
            and len(self._known) < _CACHED
        ):
            self._known[block] = head
        return head

    def is_trailer(self, block: bytes) -> bool:
        """Read a trailer; whether it is well-formed. Raises `Broken`."""
        return all([_is_field(name, value) for name, value in self._decode(block)])

    def _decode(self, block: bytes) -> Iterable[tuple[bytes, bytes]]:
        if min(block, default=0) < _REFERENCE:
            self._known.clear()  # The table may change.
        if _THREE_SIZE_UPDATES.match(block):
            raise Broken(Failure.COMPRESSION, "more than two table size updates in a header")
        try:
            told = self._decoder.decode(block, raw=True)
            self.decoded += sum([len(name) + len(value) for name, value in told])
            return told
        except OversizedHeaderListError as error:
            raise Broken(Failure.ENHANCE_YOUR_CALM, "a header is too large") from error
        except HPACKError as error:
            raise Broken(Failure.COMPRESSION, "a header cannot be read") from error


def _head_of(told: Iterable[tuple[bytes, bytes]]) -> HeaderBlock | None:
    """Check a request's fields (RFC 9113, sections 8.2 and 8.3); None for a malformed request."""
    pseudo: dict[bytes, str] = {}
    fields: dict[str, str] = {}
    has_fields = False
    for name, value in told:
        if name in _PSEUDO and not has_fields and name not in pseudo and _is_value(value):
            pseudo[name] = value.decode("latin-1")
        elif _is_field(name, value):
            has_fields = True
            if name in _KEPT:
                text, line = name.decode("ascii"), value.decode("latin-1")
                fields[text] = f"{fields[text]}, {line}" if text in fields else line
        else:
            return None
    method, path = pseudo.get(b":method"), pseudo.get(b":path")
    length = fields.get("content-length", "0")
    if not (method and path and pseudo.get(b":scheme") and length.isdecimal() and len(length) < 16):
        return None
    return HeaderBlock(
        method, path, fields, len(method) + len(path) + sum(map(len, fields.values()))
    )


def _is_field(name: bytes, value: bytes) -> bool:
    return (
        _NAME.fullmatch(name) is not None
        and name not in _CONNECTION_FIELDS
        and (name != b"te" or value == b"trailers")
        and _is_value(value)
    )


def _is_value(value: bytes) -> bool:
    bad = (b"\0" in value, b"\r" in value, b"\n" in value)  # Far faster than an expression.
    return True not in bad and value == value.strip(b" \t")
