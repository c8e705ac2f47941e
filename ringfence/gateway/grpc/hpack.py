"""Decoding of request headers on one HTTP/2 connection, and the connection errors of HTTP/2.

Decoding a header takes longer than the rest of a request. Clients repeat the same header as
references to the compression table of the connection. The results of decoding such headers, if
small, are cached until the table changes.
"""

import re
from collections.abc import Iterable
from enum import IntEnum

from hpack import Decoder, HPACKError, OversizedHeaderListError
from msgspec import Struct

__all__ = ["Http2Error", "Failure", "HeaderBlock", "HeaderBlocks"]

_CACHED, _LARGEST_CACHED = 16, 1024
"""Maximum number of cached headers, and maximum bytes of one of them."""
_REFERENCE = 0x80
"""Lowest first byte of a reference to a complete field (RFC 7541, section 6.1)."""
_PSEUDO = frozenset((b":method", b":scheme", b":path", b":authority"))
_KEPT = frozenset((b"content-type", b"content-length", b"authorization", b"grpc-timeout"))
"""Fields that the gateway reads. Other fields are validated and dropped."""
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]+")
_CONNECTION_FIELDS = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade")
)
_THREE_SIZE_UPDATES = re.compile(rb"(?:[\x20-\x3e]|\x3f[\x80-\xff]*[\x00-\x7f]){3}")
"""Maximum table size updates at the start of a block (RFC 7541, section 4.2)."""


class Failure(IntEnum):
    """Error codes of HTTP/2 that this server sends."""

    NONE = 0
    PROTOCOL = 1
    FLOW_CONTROL = 3
    STREAM_CLOSED = 5
    FRAME_SIZE = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION = 9
    ENHANCE_YOUR_CALM = 11


class Http2Error(Exception):
    """Protocol error, with an HTTP/2 error code, after which the connection must be closed."""

    def __init__(self, failure: Failure, why: str) -> None:
        super().__init__(why)
        self.failure = failure


class HeaderBlock(Struct, frozen=True):
    """Parsed header block of an HTTP/2 request; requests with equal headers may share one
    object."""

    method: str
    path: str
    fields: dict[str, str]
    """Fields that the gateway reads, by name. Repeated fields are joined by commas."""
    size: int


class HeaderBlocks:
    """Decoder of all header blocks of one HTTP/2 connection, in the order in which they arrive."""

    def __init__(self, largest: int) -> None:
        self.decoded = 0
        """Number of decoded bytes so far, as a measure of work."""
        self._decoder = Decoder(largest)
        self._known: dict[bytes, HeaderBlock] = {}
        """Cached blocks that consist of table references only. Valid while the table is
        unchanged."""

    def read(self, block: bytes) -> HeaderBlock | None:
        """Decode the header block of a request; None if it is malformed. Raises `Http2Error`."""
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
        """Decode a trailer block and return whether it is well-formed. Raises `Http2Error`."""
        return all([_is_field(name, value) for name, value in self._decode(block)])

    def _decode(self, block: bytes) -> Iterable[tuple[bytes, bytes]]:
        if min(block, default=0) < _REFERENCE:
            self._known.clear()  # This header may change the table.
        if _THREE_SIZE_UPDATES.match(block):
            raise Http2Error(Failure.COMPRESSION, "more than two table size updates in a header")
        try:
            pairs = self._decoder.decode(block, raw=True)
            self.decoded += sum([len(name) + len(value) for name, value in pairs])
            return pairs
        except OversizedHeaderListError as error:
            raise Http2Error(Failure.ENHANCE_YOUR_CALM, "a header is too large") from error
        except HPACKError as error:
            raise Http2Error(Failure.COMPRESSION, "a header cannot be read") from error


def _head_of(pairs: Iterable[tuple[bytes, bytes]]) -> HeaderBlock | None:
    """Validate the header fields of a request (RFC 9113, sections 8.2 and 8.3); None if they are
    malformed."""
    pseudo: dict[bytes, str] = {}
    fields: dict[str, str] = {}
    has_fields = False
    for name, value in pairs:
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
    bad = (b"\0" in value, b"\r" in value, b"\n" in value)  # Far faster than a regular expression.
    return True not in bad and value == value.strip(b" \t")
