"""What a server sends over one HTTP/2 connection: answers, as far as the caller's windows allow.

Headers go without compression that would need a state: those of gRPC's answers are the same bytes
every time. When bytes leave is the connection's affair.
"""

import struct
from enum import IntEnum, IntFlag

__all__ = ["STATUS_200", "Flags", "Kind", "Outbox", "field", "frame"]

_HEADER = struct.Struct(">HBBBI")
_NUMBER = struct.Struct(">I")
_LARGEST_FRAME = 16_384
_LARGEST_WINDOW = 2**31 - 1
STATUS_200 = b"\x88"
"""`:status: 200`, by its number in the table that everybody has."""


class Kind(IntEnum):
    """Kinds of frames."""

    DATA = 0
    HEADERS = 1
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class Flags(IntFlag):
    """Flags of frames; `ACK` and `END_STREAM` are one bit on different kinds."""

    ACK = 0x1
    END_STREAM = 0x1
    END_HEADERS = 0x4
    PADDED = 0x8
    PRIORITY = 0x20


# As plain numbers: the flags of an enumeration take longer to join than a frame to write.
_DATA, _HEADERS, _END_HEADERS, _END = 0, 1, 0x4, 0x5


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Write one frame."""
    size = len(payload)
    return _HEADER.pack(size >> 8, size & 0xFF, kind, flags, stream) + payload


def field(name: bytes, value: bytes) -> bytes:
    """Write a header field that no table holds, nor shall."""
    return b"\x00" + _text(name) + _text(value)


def _text(text: bytes) -> bytes:
    """Write text with its length, in an integer that begins with 7 bits (RFC 7541, section 5)."""
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


class _Stream:
    """An answer that has not left yet."""

    __slots__ = ("end", "is_read", "is_told", "waiting", "window")

    def __init__(self, window: int) -> None:
        self.window = window
        self.waiting = b""
        self.end: bytes | None = None
        """The frame that ends it, once it is known."""
        self.is_read = False
        """The caller has sent all of its request."""
        self.is_told = False
        """The header has left."""


class Outbox:
    """Answers to the open streams, and other frames."""

    def __init__(self) -> None:
        self._frames: list[bytes] = []
        self._streams: dict[int, _Stream] = {}
        self._window = self._initial_window = 65_535

    @property
    def streams(self) -> int:
        """How many are open."""
        return len(self._streams)

    def put(self, written: bytes) -> None:
        """Let a frame leave that needs no window."""
        self._frames.append(written)

    def take(self) -> bytes:
        """Take all that may leave now."""
        written = b"".join(self._frames)
        self._frames.clear()
        return written

    def open(self, number: int) -> None:
        """A request has begun."""
        self._streams[number] = _Stream(self._initial_window)

    def is_told(self, number: int) -> bool:
        """Whether the header of an answer has left."""
        stream = self._streams.get(number)
        return stream is not None and stream.is_told

    def is_read(self, number: int) -> None:
        """A request is complete."""
        self._streams[number].is_read = True

    def forget(self, number: int) -> None:
        """The caller does not want its answer any more."""
        self._streams.pop(number, None)

    def reset(self, number: int, failure: int) -> None:
        """Tell the caller that there will be no answer, or no more of it."""
        self._streams.pop(number, None)
        self._frames.append(frame(Kind.RST_STREAM, 0, number, _NUMBER.pack(failure)))

    # -- answering -----------------------------------------------------------------------------

    def answer(self, number: int, header: bytes, body: bytes, trailer: bytes) -> None:
        """Answer at once, with a header block after `:status`, a body and a trailer block."""
        stream = self._streams.get(number)
        size = len(body)
        if stream is None:
            return
        if (
            size <= stream.window
            and size <= self._window
            and size <= _LARGEST_FRAME
            and not stream.is_told
        ):
            self._window -= size
            del self._streams[number]
            pack = _HEADER.pack
            self._frames += (
                pack(0, len(header) + 1, _HEADERS, _END_HEADERS, number),
                STATUS_200,
                header,
                pack(size >> 8, size & 0xFF, _DATA, 0, number),
                body,
                pack(0, len(trailer), _HEADERS, _END, number),
                trailer,
            )
            return
        self.tell(number, header, body)
        self.end(number, trailer)

    def tell(self, number: int, header: bytes, body: bytes) -> None:
        """Send a piece of an answer, after the header the first time."""
        stream = self._streams.get(number)
        if stream is not None:
            if not stream.is_told:
                stream.is_told = True
                self.put(frame(_HEADERS, _END_HEADERS, number, STATUS_200 + header))
            stream.waiting += body
            self._push(number, stream)

    def end(self, number: int, block: bytes) -> None:
        """End an answer by a trailer block; one of which nothing was told by its only block."""
        stream = self._streams.get(number)
        if stream is not None:
            stream.end = frame(_HEADERS, _END, number, block)
            self._push(number, stream)

    def _push(self, number: int, stream: _Stream) -> None:
        while stream.waiting:
            room = min(stream.window, self._window, _LARGEST_FRAME)
            if room <= 0:
                return
            piece, stream.waiting = stream.waiting[:room], stream.waiting[room:]
            stream.window -= len(piece)
            self._window -= len(piece)
            self.put(frame(_DATA, 0, number, piece))
        if stream.end is not None:
            self.put(stream.end)
            if not stream.is_read:
                self.reset(number, 0)  # The rest of the request is not wanted.
            self._streams.pop(number, None)

    # -- windows -------------------------------------------------------------------------------

    def widen(self, number: int, by: int) -> bool:
        """The caller takes more, on one stream or on all together (0); False if that is absurd."""
        if not number:
            self._window += by
            self._push_all()
            return self._window <= _LARGEST_WINDOW
        stream = self._streams.get(number)
        if stream is None:
            return True
        stream.window += by
        self._push(number, stream)
        return stream.window <= _LARGEST_WINDOW

    def set_initial_window(self, size: int) -> None:
        """The caller takes so much on every stream."""
        for stream in self._streams.values():
            stream.window += size - self._initial_window
        self._initial_window = size
        self._push_all()

    def _push_all(self) -> None:
        for number, stream in list(self._streams.items()):
            if stream.waiting:
                self._push(number, stream)
