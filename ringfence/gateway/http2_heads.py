"""The headers of the requests on one HTTP/2 connection, and what is wrong with a connection.

Reading a header takes longer than all the rest of a request, and callers send the same one again
and again: as references to a table that both ends keep. So what such a block said is remembered
until that table changes.
"""

from dataclasses import dataclass
from enum import IntEnum

from hpack import Decoder, HPACKError, OversizedHeaderListError

__all__ = ["Broken", "Failure", "Head", "Heads"]

_REMEMBERED = 256
_REFERENCE = 0x80
"""A byte of at least this is a reference to a field as a whole (RFC 7541, section 6.1)."""


class Failure(IntEnum):
    """HTTP/2's error codes, those that we send."""

    NONE = 0
    PROTOCOL = 1
    FLOW_CONTROL = 3
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
class Head:
    """What a request's header says; many requests share one."""

    method: str
    path: str
    fields: dict[str, str]
    """By name in lower case, the lines of one name joined by commas."""


class Heads:
    """Reads the headers of one connection, which must be read in order and none left out."""

    def __init__(self, largest: int) -> None:
        self._decoder = Decoder(largest)
        self._known: dict[bytes, Head | None] = {}
        """Blocks made of nothing but references to the decoder's table, which is as it was."""

    def read(self, block: bytes) -> Head | None:
        """Read a header; None for one that is no request's. Raises `Broken`."""
        if block in self._known:
            return self._known[block]
        only_refers = min(block, default=0) >= _REFERENCE
        if not only_refers:
            self._known.clear()  # The table may change.
        try:
            told = self._decoder.decode(block, raw=True)
        except OversizedHeaderListError as error:
            raise Broken(Failure.ENHANCE_YOUR_CALM, "a header is too large") from error
        except HPACKError as error:
            raise Broken(Failure.COMPRESSION, "a header cannot be read") from error
        fields: dict[str, str] = {}
        for raw_name, raw_value in told:
            name, value = bytes(raw_name).decode("latin-1"), bytes(raw_value).decode("latin-1")
            fields[name] = f"{fields[name]}, {value}" if name in fields else value
        is_request = ":method" in fields and ":path" in fields
        head = Head(fields[":method"], fields[":path"], fields) if is_request else None
        if only_refers and len(self._known) < _REMEMBERED:
            self._known[block] = head
        return head
