"""Sending side of one HTTP/2 connection: frames and flow control of responses.

Headers are sent without dynamic compression, because gRPC response headers are always the same
bytes. The connection decides when bytes are written to the socket.
"""

import struct
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from ringfence.gateway.grpc.hpack import Failure, HeaderBlock

__all__ = ["STATUS_200", "Flags", "Kind", "Outbox", "Stream", "field", "frame"]

_HEADER = struct.Struct(">HBBBI")
_NUMBER = struct.Struct(">I")
_LARGEST_FRAME = 16_384
_LARGEST_WINDOW = 2**31 - 1
STATUS_200 = b"\x88"
"""`:status: 200`, by its index in the static table."""
_MAX_WAITING, _REMEMBERED = 262_144, 1024
"""Maximum of response bytes that wait for a window, and of `Outbox.dropped`, per connection."""


class Kind:
    """Type numbers of HTTP/2 frames; plain integers, because comparing enumerations is slow."""

    DATA: Final = 0
    HEADERS: Final = 1
    PRIORITY: Final = 2
    RST_STREAM: Final = 3
    SETTINGS: Final = 4
    PUSH_PROMISE: Final = 5
    PING: Final = 6
    GOAWAY: Final = 7
    WINDOW_UPDATE: Final = 8
    CONTINUATION: Final = 9


class Flags:
    """Flags of HTTP/2 frames. `ACK` and `END_STREAM` are the same bit on different frame types."""

    ACK: Final = 0x1
    END_STREAM: Final = 0x1
    END_HEADERS: Final = 0x4
    PADDED: Final = 0x8
    PRIORITY: Final = 0x20


_END = Flags.END_HEADERS | Flags.END_STREAM


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Encode one HTTP/2 frame."""
    size = len(payload)
    return _HEADER.pack(size >> 8, size & 0xFF, kind, flags, stream) + payload


def field(name: bytes, value: bytes) -> bytes:
    """Encode a header field as a literal that is never indexed."""
    return b"\x00" + _text(name) + _text(value)


def _text(text: bytes) -> bytes:
    """Encode text, preceded by its length as an integer with a 7-bit prefix (RFC 7541, section
    5)."""
    size = len(text)
    if size < 127:
        return bytes((size,)) + text
    size -= 127
    prefix = bytearray(b"\x7f")
    while size >= 128:
        prefix.append(size & 0x7F | 0x80)
        size >>= 7
    prefix.append(size)
    return bytes(prefix) + text


class Stream(Struct, eq=False):
    """Open HTTP/2 stream: a request and its response."""

    head: HeaderBlock
    began: float
    body: bytes | bytearray = b""
    held: int = 0
    """Bytes of received DATA frames. They count against the connection's window until the stream
    closes."""
    is_read: bool = False
    """Whether the request has been received completely."""
    is_refused: bool = False
    """Whether the rest of the request is discarded."""
    credit: int = 0
    """Difference between the window and its initial size."""
    waiting: bytes = b""
    end: bytes | None = None
    """Frame that ends the stream, as soon as it is known."""
    are_headers_sent: bool = False
    """Whether the header block has been sent."""


class Outbox:
    """Open streams of a connection with their responses, and other outgoing frames."""

    def __init__(self, on_close: Callable[[Stream], None]) -> None:
        """`on_close` is called with each HTTP/2 stream that closes."""
        self.answered = 0
        """Number of calls answered so far."""
        self.waiting = 0
        """Response bytes that wait for a window."""
        self.blocked: dict[int, Stream] = {}
        """Streams whose responses wait for a window."""
        self.dropped: dict[int, None] = {}
        """Streams that were reset before their request was complete. The oldest ones are
        evicted."""
        self.open: dict[int, Stream] = {}
        self._on_close = on_close
        self._frames: list[bytes] = []
        self._window = self._initial_window = 65_535

    def put(self, written: bytes) -> None:
        """Queue an HTTP/2 frame for sending, without a check of the flow-control windows."""
        self._frames.append(written)

    def take(self) -> bytes:
        """Remove and return all queued bytes that flow control permits to send now."""
        written = b"".join(self._frames)
        self._frames.clear()
        return written

    def forget(self, number: int) -> None:
        """Remove an HTTP/2 stream that the client has reset."""
        stream = self.open.pop(number, None)
        if stream is not None:
            if self.blocked.pop(number, None) is not None:
                self.waiting -= len(stream.waiting)
            self._on_close(stream)

    def reset(self, number: int, failure: int, *, is_read: bool = False) -> None:
        """Reset an HTTP/2 stream, so that no more of its response is sent."""
        stream = self.open.get(number)
        if not (is_read or (stream is not None and stream.is_read)):
            self.dropped[number] = None
            if len(self.dropped) > _REMEMBERED:
                del self.dropped[next(iter(self.dropped))]
        self.forget(number)
        self._frames.append(frame(Kind.RST_STREAM, 0, number, _NUMBER.pack(failure)))

    # -- answering -----------------------------------------------------------------------------

    def answer(self, number: int, header: bytes, body: bytes, trailer: bytes) -> None:
        """Send a complete response: header block, body and trailer block."""
        stream = self.open.get(number)
        size = len(body)
        if stream is None:
            return
        if (
            size <= stream.credit + self._initial_window
            and size <= self._window
            and size <= _LARGEST_FRAME
            and not stream.are_headers_sent
            and stream.is_read
        ):
            self._window -= size
            self.answered += 1
            del self.open[number]
            self._on_close(stream)
            pack = _HEADER.pack
            self._frames += (
                pack(0, len(header), Kind.HEADERS, Flags.END_HEADERS, number),
                header,
                pack(size >> 8, size & 0xFF, Kind.DATA, 0, number),
                body,
                pack(0, len(trailer), Kind.HEADERS, _END, number),
                trailer,
            )
            return
        self.send_message(number, header, body)
        self.end(number, trailer)

    def send_message(self, number: int, header: bytes, body: bytes) -> None:
        """Send one message of a streamed response; the header block precedes the first message."""
        stream = self.open.get(number)
        if stream is None:
            return
        if self.waiting + len(body) > _MAX_WAITING:
            self.reset(number, Failure.ENHANCE_YOUR_CALM)
            return
        if not stream.are_headers_sent:
            stream.are_headers_sent = True
            self.put(frame(Kind.HEADERS, Flags.END_HEADERS, number, header))
        stream.waiting += body
        self.waiting += len(body)
        self._push(number, stream)

    def end(self, number: int, block: bytes) -> None:
        """End a response with a trailer block.

        If nothing was sent before, the response consists of this block only.
        """
        stream = self.open.get(number)
        if stream is not None:
            self.answered += 1
            stream.end = frame(Kind.HEADERS, _END, number, block)
            self._push(number, stream)

    def _push(self, number: int, stream: Stream) -> None:
        """Send as much of a response as the flow-control windows permit; the remainder waits."""
        while stream.waiting:
            room = min(stream.credit + self._initial_window, self._window, _LARGEST_FRAME)
            if room <= 0:
                self.blocked[number] = stream
                return
            piece, stream.waiting = stream.waiting[:room], stream.waiting[room:]
            stream.credit -= len(piece)
            self._window -= len(piece)
            self.waiting -= len(piece)
            self.put(frame(Kind.DATA, 0, number, piece))
        self.blocked.pop(number, None)
        if stream.end is not None:
            self.put(stream.end)
            if stream.is_read:
                self.forget(number)
            else:
                self.reset(number, Failure.NONE)  # The rest of the request is not needed.

    # -- windows -------------------------------------------------------------------------------

    def widen(self, number: int, by: int) -> bool:
        """Enlarge the flow-control window of a stream, or of the connection (stream 0).

        Returns False if the window exceeds the maximum.
        """
        if not number:
            self._window += by
            self._push_blocked()
            return self._window <= _LARGEST_WINDOW
        stream = self.open.get(number)
        if stream is None:
            return True
        stream.credit += by
        if number in self.blocked:
            self._push(number, stream)
        return stream.credit + self._initial_window <= _LARGEST_WINDOW

    def set_initial_window(self, size: int) -> None:
        """Set the initial flow-control window of every stream, as the client's settings request."""
        self._initial_window = size
        self._push_blocked()

    def _push_blocked(self) -> None:
        for number, stream in list(self.blocked.items()):
            if self._window <= 0:
                break
            self._push(number, stream)
