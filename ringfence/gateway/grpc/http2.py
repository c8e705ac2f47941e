"""Server side of HTTP/2 (RFC 9113) for short gRPC calls; it converts bytes to requests, without
I/O.

Existing HTTP/2 libraries cost several times as much processor time as the calls themselves. This
module decides framing, flow control, and the memory and work that one client can cause;
docs/guides/gateway.md states the bounds. The package `hpack` decompresses headers. The module
`port` interprets the requests.
"""

import struct
from typing import TypeAlias

from msgspec import Struct

from ringfence.gateway.grpc.hpack import Failure, HeaderBlock, HeaderBlocks, Http2Error
from ringfence.gateway.grpc.http2_sender import Flags, Kind, Outbox, Stream, frame

__all__ = ["StreamReset", "Http2", "Input", "Request", "TooLarge"]

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEADER = struct.Struct(">HBBBI")
_NUMBER = struct.Struct(">I")
_SETTING = struct.Struct(">HI")
_LARGEST_FRAME = _LARGEST_BLOCK = _LARGEST_HEADERS = 16_384
_MIN_WINDOW = 262_144
"""Maximum bytes of request bodies of unanswered calls per connection, and at least four bodies."""
_MAX_STREAMS, _MAX_HEADER_BYTES, _STREAM = 1000, 1 << 20, 512
"""Maximum of unanswered calls per connection, and maximum bytes of their headers.

Each call adds `_STREAM` bytes."""
_WORK, _FRAME = 2048, 64
"""Maximum work of one call: header bytes, blocked responses, and `_FRAME` for each frame."""
_FRAMES, _FRAMES_PER_SECOND, _FRAMES_PER_ANSWER = 1000.0, 33.0, 4
"""Maximum of frames that start no call (resets, pings): burst, per second, and per response."""
_ENABLE_PUSH, _MAX_CONCURRENT_STREAMS, _INITIAL_WINDOW_SIZE, _MAX_FRAME_SIZE = 2, 3, 4, 5
_MAX_HEADER_LIST_SIZE = 6
_LARGEST_WINDOW = 2**31 - 1
_SIZES = {Kind.PRIORITY: 5, Kind.RST_STREAM: 4, Kind.PING: 8, Kind.WINDOW_UPDATE: 4}
_ON_CONNECTIONS = (Kind.SETTINGS, Kind.PING, Kind.GOAWAY)


class Request(Struct):
    """Event: a complete HTTP/2 request has arrived."""

    stream: int
    head: HeaderBlock
    body: bytes


class TooLarge(Struct):
    """Event: the body of a request exceeds the maximum size. The rest of the body is discarded."""

    stream: int


class StreamReset(Struct):
    """Event: a stream was reset by the client or the server, so no response can be sent."""

    stream: int


Input: TypeAlias = Request | TooLarge | StreamReset


class Http2:
    """HTTP/2 server state of one connection."""

    def __init__(self, max_body: int, now: float) -> None:
        self.out = Outbox(self._closed)
        """Queue of frames to send. The owner of the connection sends its bytes."""
        self.is_broken = False
        """Whether the client violated the protocol. Nothing more is read then."""
        self.is_draining = False
        self.has_more = False
        """Whether received bytes remain: call `receive` again after other work."""
        self.last_request = now
        """Start of the latest request, or of the connection if there was none."""
        self._now = now
        self._max_body = max_body
        self._header_blocks = HeaderBlocks(_LARGEST_HEADERS)
        self._last = 0
        self._rest = b""
        self._block: tuple[int, int, bytes] | None = None
        """Stream, flags and first part of a header that continues in the next frame."""
        self._has_preface = False
        self._window = max(_MIN_WINDOW, 4 * max_body)
        self._held = self._window_debt = self._held_header_bytes = 0
        self._frames, self._frames_at, self._answers = _FRAMES, now, 0
        self._stuck_since: float | None = now
        """Start of the wait for the rest of a frame or header, or for the first frame."""
        settings = (
            *(_MAX_CONCURRENT_STREAMS, _MAX_STREAMS, _MAX_HEADER_LIST_SIZE, _LARGEST_HEADERS),
            # One byte more than the maximum, so that a larger body is detected.
            *(_INITIAL_WINDOW_SIZE, max_body + _LARGEST_FRAME),
        )
        self.out.put(frame(Kind.SETTINGS, 0, 0, struct.pack(">HIHIHI", *settings)))
        self._restore_window(self._window - 65_535)

    @property
    def kept(self) -> int:
        """Return how many received and unsent bytes this connection buffers."""
        return len(self._rest) + self._held + self._held_header_bytes + self.out.waiting

    def receive(self, received: bytes, now: float) -> list[Input]:
        """Process bytes from the client; return the resulting events, such as a complete request.

        One call does a bounded amount of work; `has_more` is True if unprocessed bytes remain.
        """
        if self.is_broken:
            return []
        found: list[Input] = []
        self._now = now
        try:
            self._read(self._rest + received if self._rest else received, found)
        except Http2Error as error:
            self._break(error.failure, str(error))
        return found

    def give_up_before(self, instant: float) -> list[int]:
        """Reset calls that are incomplete since before `instant`; return the numbers of their
        streams.

        If a frame or header is incomplete since before then, end the connection.
        """
        if self._stuck_since is not None and self._stuck_since < instant:
            self._break(Failure.ENHANCE_YOUR_CALM, "too slow")
        old = [(each, stream) for each, stream in self.out.open.items() if stream.began < instant]
        slow = [each for each, stream in old if stream.waiting or not stream.is_read]
        for number in slow:
            self.out.reset(number, Failure.CANCEL)
        return slow

    def drain(self) -> None:
        """Refuse new requests on this connection. Accepted requests are still answered."""
        if not self.is_draining and not self.is_broken:
            self.is_draining = True
            self.out.put(self._goodbye(Failure.NONE, "the gateway is stopping"))

    # -- frames --------------------------------------------------------------------------------

    def _read(self, received: bytes, found: list[Input]) -> None:
        at, end, work, decoded = 0, len(received), 0, self._header_blocks.decoded
        if not self._has_preface:
            if not _PREFACE.startswith(received[:24]):
                raise Http2Error(Failure.PROTOCOL, "the connection preface of HTTP/2 is missing")
            if end < 24:
                self._rest = received
                return
            self._has_preface, self._stuck_since, at = True, None, 24
        self.has_more = False
        while end - at >= 9:
            high, low, kind, flags, stream = _HEADER.unpack_from(received, at)
            size = high << 8 | low
            if size > _LARGEST_FRAME:
                raise Http2Error(Failure.FRAME_SIZE, "a frame is larger than the announced maximum")
            if end - at - 9 < size:
                break
            self.has_more = work + self._header_blocks.decoded - decoded >= _WORK
            if self.has_more:
                break
            at += 9 + size
            work += _FRAME + (size + len(self.out.blocked) if kind else 0)
            if kind > Kind.HEADERS:
                self._charge()
            self._take(kind, flags, stream & _LARGEST_WINDOW, received[at - size : at], found)
        self._rest = received[at:]
        if self._block is None:
            if self.has_more or not self._rest:
                self._stuck_since = None
            elif (
                at or self._stuck_since is None
            ):  # A complete frame shows that the client is not slow.
                self._stuck_since = self._now

    def _take(  # noqa: PLR0912 - one branch per kind of frame
        self, kind: int, flags: int, stream: int, payload: bytes, found: list[Input]
    ) -> None:
        if self._block is not None and kind != Kind.CONTINUATION:
            raise Http2Error(Failure.PROTOCOL, "expected a CONTINUATION frame")
        if kind == Kind.DATA:
            self._take_data(flags, stream, payload, found)
            return
        if kind == Kind.HEADERS:
            block = _unpadded(flags, payload)
            if flags & Flags.PRIORITY:
                _check_priority(stream, block[:5])
                block = block[5:]
            self._stuck_since = self._now
            self._take_block(stream, flags, block, found)
            return
        if len(payload) != _SIZES.get(kind, len(payload)):
            raise Http2Error(Failure.FRAME_SIZE, "a frame has the wrong size")
        if stream and kind in _ON_CONNECTIONS:
            raise Http2Error(Failure.PROTOCOL, "a frame belongs on another stream")
        if kind == Kind.CONTINUATION:
            if self._block is None or self._block[0] != stream:
                raise Http2Error(Failure.PROTOCOL, "unexpected CONTINUATION frame")
            _, first, started = self._block
            self._block = None
            self._take_block(stream, flags | first, started + payload, found)
        elif kind == Kind.WINDOW_UPDATE:
            self._widen(stream, payload, found)
        elif kind == Kind.RST_STREAM:
            self._require_begun(stream)
            self.out.forget(stream)
            self.out.dropped.pop(stream, None)
            found.append(StreamReset(stream))
        elif kind == Kind.SETTINGS:
            self._take_settings(flags, payload)
        elif kind == Kind.PING and not flags & Flags.ACK:
            self.out.put(frame(Kind.PING, Flags.ACK, 0, payload))
        elif kind == Kind.PRIORITY:
            _check_priority(stream, payload)
        elif kind == Kind.PUSH_PROMISE:
            raise Http2Error(Failure.PROTOCOL, "a client must not send PUSH_PROMISE")
        # Other frame types, including unknown ones, need no action.

    def _charge(self) -> None:
        """Count an HTTP/2 frame that starts no gRPC call. Too many such frames end the
        connection."""
        answers = self.out.answered
        earned = (self._now - self._frames_at) * _FRAMES_PER_SECOND
        earned += (answers - self._answers) * _FRAMES_PER_ANSWER
        self._frames = min(_FRAMES, self._frames + earned) - 1
        self._frames_at, self._answers = self._now, answers
        if self._frames < 0:
            raise Http2Error(Failure.ENHANCE_YOUR_CALM, "too many frames that start no call")

    def _require_begun(self, stream: int) -> None:
        if stream > self._last or not stream % 2:
            raise Http2Error(Failure.PROTOCOL, "a frame for a stream that was never opened")

    def _take_settings(self, flags: int, payload: bytes) -> None:
        if len(payload) % 6 or (flags & Flags.ACK and payload):
            raise Http2Error(Failure.FRAME_SIZE, "settings have 6 bytes each")
        if flags & Flags.ACK:
            return
        # The acknowledgement must precede data that the larger window permits.
        self.out.put(frame(Kind.SETTINGS, Flags.ACK, 0, b""))
        settings = dict(_SETTING.iter_unpack(payload))
        largest = settings.get(_MAX_FRAME_SIZE, _LARGEST_FRAME)
        if settings.get(_ENABLE_PUSH, 0) > 1 or not _LARGEST_FRAME <= largest < 1 << 24:
            raise Http2Error(Failure.PROTOCOL, "a setting is out of bounds")
        window = settings.get(_INITIAL_WINDOW_SIZE)
        if window is not None:
            if window > _LARGEST_WINDOW:
                raise Http2Error(Failure.FLOW_CONTROL, "a window is too large")
            self.out.set_initial_window(window)

    def _widen(self, stream: int, payload: bytes, found: list[Input]) -> None:
        if stream:
            self._require_begun(stream)
        by = _NUMBER.unpack(payload)[0] & _LARGEST_WINDOW
        if not by or not self.out.widen(stream, by):
            failure = Failure.FLOW_CONTROL if by else Failure.PROTOCOL
            if not stream:
                raise Http2Error(failure, "a window update is zero or too large")
            self._drop(stream, failure, found)

    def _drop(self, stream: int, failure: Failure, found: list[Input]) -> None:
        """Remove an HTTP/2 stream and end the gRPC call on it."""
        if stream in self.out.open:
            self._charge()
            self.out.reset(stream, failure)
            found.append(StreamReset(stream))

    # -- requests ------------------------------------------------------------------------------

    def _take_block(self, stream: int, flags: int, block: bytes, found: list[Input]) -> None:
        if len(block) > _LARGEST_BLOCK:
            raise Http2Error(Failure.ENHANCE_YOUR_CALM, "a header is too large")
        if not flags & Flags.END_HEADERS:
            self._block = (stream, flags & Flags.END_STREAM, block)
            return
        if not stream % 2:
            raise Http2Error(Failure.PROTOCOL, "a client's streams have odd numbers")
        if stream <= self._last:
            self._take_trailer(stream, block, flags, found)
            return
        head = self._header_blocks.read(
            block
        )  # Always decode the block, because later blocks depend on the table.
        self._last = stream
        has_ended = bool(flags & Flags.END_STREAM)
        is_full = len(self.out.open) >= _MAX_STREAMS or self._held_header_bytes > _MAX_HEADER_BYTES
        if self.is_draining or is_full or head is None:
            self._charge()
            failure = Failure.PROTOCOL if head is None else Failure.REFUSED_STREAM
            self.out.reset(stream, failure, is_read=has_ended)
            return
        self.last_request = self._now
        opened = self.out.open[stream] = Stream(head, self._now)
        self._held_header_bytes += head.size + _STREAM
        if has_ended:
            self._complete(stream, opened, found)

    def _take_trailer(self, number: int, block: bytes, flags: int, found: list[Input]) -> None:
        is_sound = self._header_blocks.is_trailer(block) and flags & Flags.END_STREAM
        stream = self.out.open.get(number)
        if stream is None or stream.is_read:
            self._take_late(number, flags)
        elif is_sound:
            self._complete(number, stream, found)
        else:
            self._drop(number, Failure.PROTOCOL, found)

    def _take_late(self, stream: int, flags: int) -> None:
        """Ignore a frame for a stream that this server has reset.

        A frame after the client's END_STREAM is a protocol error.
        """
        self._charge()
        if stream not in self.out.dropped:
            raise Http2Error(Failure.STREAM_CLOSED, "a frame for a stream that has ended")
        if flags & Flags.END_STREAM:
            del self.out.dropped[stream]

    def _take_data(self, flags: int, number: int, payload: bytes, found: list[Input]) -> None:
        self._require_begun(number)
        has_ended = bool(flags & Flags.END_STREAM)
        stream = self.out.open.get(number)
        if stream is None or stream.is_read:
            self._take_late(number, flags)
            self._restore_window(len(payload))
            return
        if not (payload or has_ended):
            self._charge()
        stream.held += len(payload)
        self._held += len(payload)
        if self._held > self._window:
            raise Http2Error(Failure.FLOW_CONTROL, "more was sent than the window allows")
        body = _unpadded(flags, payload)
        if stream.is_refused or len(stream.body) + len(body) > self._max_body:
            if not stream.is_refused:
                found.append(TooLarge(number))
            self._held -= stream.held
            self._restore_window(stream.held)
            stream.is_refused, stream.is_read, stream.body, stream.held = True, has_ended, b"", 0
            return
        if stream.body:  # Rare case. Repeated concatenation of bytes would be slow.
            if isinstance(stream.body, bytes):
                stream.body = bytearray(stream.body)
            stream.body += body
        else:
            stream.body = body
        if has_ended:
            self._complete(number, stream, found)

    def _complete(self, number: int, stream: Stream, found: list[Input]) -> None:
        stream.is_read = True
        if stream.is_refused:
            return
        if int(stream.head.fields.get("content-length", len(stream.body))) != len(stream.body):
            self._drop(number, Failure.PROTOCOL, found)
            return
        found.append(Request(number, stream.head, bytes(stream.body)))
        stream.body = b""

    def _closed(self, stream: Stream) -> None:
        self._held_header_bytes -= stream.head.size + _STREAM
        self._held -= stream.held
        self._restore_window(stream.held)

    def _restore_window(self, size: int) -> None:
        """Increase the client's flow-control window again, by at least a quarter of the window at a
        time."""
        self._window_debt += size
        if self._window_debt >= self._window // 4:
            self.out.put(frame(Kind.WINDOW_UPDATE, 0, 0, _NUMBER.pack(self._window_debt)))
            self._window_debt = 0

    def _break(self, failure: Failure, why: str) -> None:
        self.is_broken, self.has_more, self._rest = True, False, b""
        self.out.put(self._goodbye(failure, why))

    def _goodbye(self, failure: Failure, why: str) -> bytes:
        numbers = struct.pack(">II", self._last, failure)
        return frame(Kind.GOAWAY, 0, 0, numbers + why.encode())


def _unpadded(flags: int, payload: bytes) -> bytes:
    if not flags & Flags.PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise Http2Error(Failure.PROTOCOL, "more padding than frame")
    return payload[1 : len(payload) - payload[0]]


def _check_priority(stream: int, priority: bytes) -> None:
    """Reject a stream that depends on itself; ignore all other priorities (RFC 9113, 5.3.2)."""
    if len(priority) < 5:
        raise Http2Error(Failure.FRAME_SIZE, "a priority has 5 bytes")
    if not stream or _NUMBER.unpack_from(priority)[0] & _LARGEST_WINDOW == stream:
        raise Http2Error(Failure.PROTOCOL, "a stream depends on itself")
