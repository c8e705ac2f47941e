"""HTTP/2 (RFC 9113) as far as a server of short gRPC calls needs it: bytes in, requests out.

Our own, since all that could carry these calls for us costs several times what they do themselves;
docs/gateway.md tells how much. Header compression is the package `hpack`'s. Decides framing, flow
control and how much a caller may have us hold; what requests mean is `grpc_server`'s.
"""

import struct
from dataclasses import dataclass
from typing import TypeAlias

from ringfence.gateway.http2_heads import Broken, Failure, Head, Heads
from ringfence.gateway.http2_out import Flags, Kind, Outbox, frame

__all__ = ["Gone", "Http2", "Input", "Request", "TooLarge"]

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEADER = struct.Struct(">HBBBI")
_NUMBER = struct.Struct(">I")
_SETTING = struct.Struct(">HI")
_LARGEST_FRAME = 16_384
_LARGEST_BLOCK = 32_768
_LARGEST_HEADERS = 16_384
_HELD = 1 << 20
"""Bytes of bodies that are not complete, by connection."""
_REPAID = _HELD // 4
"""So much of it is given back at once."""
_MOST_STREAMS = 1000
_MAX_CONCURRENT_STREAMS, _INITIAL_WINDOW_SIZE, _MAX_HEADER_LIST_SIZE = 3, 4, 6
_LARGEST_WINDOW = 2**31 - 1


@dataclass(slots=True)
class Request:
    """A request that is complete."""

    stream: int
    head: Head
    body: bytes


@dataclass(slots=True)
class TooLarge:
    """A request whose body is larger than allowed; the rest of it is thrown away."""

    stream: int


@dataclass(slots=True)
class Gone:
    """The caller waits for this answer no longer."""

    stream: int


Input: TypeAlias = Request | TooLarge | Gone


class _Incoming:
    """A request that is not complete."""

    __slots__ = ("began", "body", "head", "held")

    def __init__(self, head: Head, now: float) -> None:
        self.head = head
        self.began = now
        self.body: bytes | bytearray = b""
        self.held = 0
        """Bytes of its frames that count against the connection's window."""


class Http2:
    """The server's end of one connection."""

    def __init__(self, max_body: int, now: float) -> None:
        self.out = Outbox()
        """Where answers are put; its bytes are to be sent whenever it has some."""
        self.is_broken = False
        """The caller broke the protocol, and was told so: nothing more is read."""
        self.is_draining = False
        self._max_body = max_body
        self._heads = Heads(_LARGEST_HEADERS)
        self._incoming: dict[int, _Incoming] = {}
        self._last = 0
        self._rest = b""
        self._block: tuple[int, int, bytes] | None = None
        """Stream, flags and beginning of a header that goes on in the next frame."""
        self._is_greeted = False
        self._held = 0
        self._owed = 0
        self._stuck_since: float | None = now
        """Since when we wait for the rest of a frame, or for the first one."""
        settings = [
            (_MAX_CONCURRENT_STREAMS, _MOST_STREAMS),
            # So that one that is too large can be seen to be.
            (_INITIAL_WINDOW_SIZE, max_body + _LARGEST_FRAME),
            (_MAX_HEADER_LIST_SIZE, _LARGEST_HEADERS),
        ]
        self.out.put(
            frame(Kind.SETTINGS, 0, 0, b"".join([_SETTING.pack(*each) for each in settings]))
        )
        self._repay(_HELD - 65_535)

    def receive(self, received: bytes, now: float) -> list[Input]:
        """Take bytes; returns what they complete, in order."""
        if self.is_broken:
            return []
        found: list[Input] = []
        try:
            self._read(self._rest + received if self._rest else received, now, found)
        except Broken as error:
            self._break(error.failure, str(error))
        return found

    def give_up_before(self, instant: float) -> list[int]:
        """Give up what began before an instant and is not complete; returns the streams."""
        if self._stuck_since is not None and self._stuck_since < instant:
            self._break(Failure.ENHANCE_YOUR_CALM, "too slow")
            return []
        slow = [number for number, each in self._incoming.items() if each.began < instant]
        for number in slow:
            self._forget(number)
            self.out.reset(number, Failure.CANCEL)
        return slow

    def drain(self) -> None:
        """Take no new requests; those that we have are answered."""
        if not self.is_draining and not self.is_broken:
            self.is_draining = True
            self.out.put(self._goodbye(Failure.NONE, "the gateway is stopping"))

    # -- frames --------------------------------------------------------------------------------

    def _read(self, received: bytes, now: float, found: list[Input]) -> None:
        at, end = 0, len(received)
        if not self._is_greeted:
            if not _PREFACE.startswith(received[:24]):
                raise Broken(Failure.PROTOCOL, "this is no HTTP/2")
            if end < 24:
                self._rest = received
                return
            self._is_greeted, self._stuck_since, at = True, None, 24
        while end - at >= 9:
            high, low, kind, flags, stream = _HEADER.unpack_from(received, at)
            size = high << 8 | low
            if size > _LARGEST_FRAME:
                raise Broken(Failure.FRAME_SIZE, "a frame is larger than announced")
            if end - at - 9 < size:
                break
            at += 9 + size
            self._take(kind, flags, stream & _LARGEST_WINDOW, received[at - size : at], now, found)
        self._rest = received[at:]
        is_stuck = bool(self._rest) or self._block is not None
        self._stuck_since = (self._stuck_since or now) if is_stuck else None

    def _take(  # noqa: PLR0912 - one branch per kind of frame
        self, kind: int, flags: int, stream: int, payload: bytes, now: float, found: list[Input]
    ) -> None:
        if self._block is not None and kind != Kind.CONTINUATION:
            raise Broken(Failure.PROTOCOL, "a header was not continued")
        if kind == Kind.DATA:
            self._take_data(flags, stream, payload, found)
        elif kind == Kind.HEADERS:
            block = _unpadded(flags, payload)
            if flags & Flags.PRIORITY:
                block = block[5:]
            self._take_block(stream, flags, block, now, found)
        elif kind == Kind.CONTINUATION:
            if self._block is None or self._block[0] != stream:
                raise Broken(Failure.PROTOCOL, "there is nothing to continue")
            _, first, begun = self._block
            self._block = None
            self._take_block(stream, flags | first, begun + payload, now, found)
        elif kind == Kind.WINDOW_UPDATE:
            self._widen(stream, payload)
        elif kind == Kind.RST_STREAM:
            if stream > self._last:
                raise Broken(Failure.PROTOCOL, "a stream was reset that never was")
            self._forget(stream)
            self.out.forget(stream)
            found.append(Gone(stream))
        elif kind == Kind.SETTINGS:
            self._take_settings(flags, payload)
        elif kind == Kind.PING:
            if len(payload) != 8:
                raise Broken(Failure.FRAME_SIZE, "a ping has 8 bytes")
            if not flags & Flags.ACK:
                self.out.put(frame(Kind.PING, Flags.ACK, 0, payload))
        elif kind == Kind.PUSH_PROMISE:
            raise Broken(Failure.PROTOCOL, "clients do not push")
        # All others, those that we do not know among them, ask nothing of us.

    def _take_settings(self, flags: int, payload: bytes) -> None:
        if len(payload) % 6 or (flags & Flags.ACK and payload):
            raise Broken(Failure.FRAME_SIZE, "settings have 6 bytes each")
        if flags & Flags.ACK:
            return
        # First of all: what a wider window lets out must not come before we say that we saw it.
        self.out.put(frame(Kind.SETTINGS, Flags.ACK, 0, b""))
        for name, value in _SETTING.iter_unpack(payload):
            if name == _INITIAL_WINDOW_SIZE:
                if value > _LARGEST_WINDOW:
                    raise Broken(Failure.FLOW_CONTROL, "a window is too large")
                self.out.set_initial_window(value)

    def _widen(self, stream: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Broken(Failure.FRAME_SIZE, "a window update has 4 bytes")
        by = _NUMBER.unpack(payload)[0] & _LARGEST_WINDOW
        if not by or not self.out.widen(stream, by):
            raise Broken(Failure.FLOW_CONTROL, "a window was widened by nothing or too much")

    # -- requests ------------------------------------------------------------------------------

    def _take_block(
        self, stream: int, flags: int, block: bytes, now: float, found: list[Input]
    ) -> None:
        if len(block) > _LARGEST_BLOCK:
            raise Broken(Failure.ENHANCE_YOUR_CALM, "a header is too large")
        if not flags & Flags.END_HEADERS:
            self._block = (stream, flags & Flags.END_STREAM, block)
            return
        head = self._heads.read(block)  # In any case: the next blocks build on it.
        has_ended = bool(flags & Flags.END_STREAM)
        if stream <= self._last:
            if has_ended and stream in self._incoming:  # Trailers.
                self._complete(stream, found)
            return
        if not stream % 2:
            raise Broken(Failure.PROTOCOL, "a client's streams have odd numbers")
        self._last = stream
        if self.is_draining or self.out.streams >= _MOST_STREAMS:
            self.out.reset(stream, Failure.REFUSED_STREAM)
        elif head is None:
            self.out.reset(stream, Failure.PROTOCOL)
        else:
            self.out.open(stream)
            self._incoming[stream] = _Incoming(head, now)
            if has_ended:
                self._complete(stream, found)

    def _take_data(self, flags: int, stream: int, payload: bytes, found: list[Input]) -> None:
        if stream > self._last or not stream:
            raise Broken(Failure.PROTOCOL, "a body without a header")
        incoming = self._incoming.get(stream)
        if incoming is None:  # Given up meanwhile, by us or by the caller.
            self._repay(len(payload))
            return
        incoming.held += len(payload)
        self._held += len(payload)
        if self._held > _HELD:
            raise Broken(Failure.FLOW_CONTROL, "more was sent than the window allows")
        body = _unpadded(flags, payload)
        if len(incoming.body) + len(body) > self._max_body:
            self._forget(stream)
            found.append(TooLarge(stream))
            return
        if incoming.body:  # Not the usual case; to join bytes again and again takes long.
            if isinstance(incoming.body, bytes):
                incoming.body = bytearray(incoming.body)
            incoming.body += body
        else:
            incoming.body = body
        if flags & Flags.END_STREAM:
            self._complete(stream, found)

    def _complete(self, stream: int, found: list[Input]) -> None:
        incoming = self._incoming[stream]
        self._forget(stream)
        self.out.is_read(stream)
        found.append(Request(stream, incoming.head, bytes(incoming.body)))

    def _forget(self, stream: int) -> None:
        incoming = self._incoming.pop(stream, None)
        if incoming is not None:
            self._held -= incoming.held
            self._repay(incoming.held)

    def _repay(self, size: int) -> None:
        self._owed += size
        if self._owed >= _REPAID:
            self.out.put(frame(Kind.WINDOW_UPDATE, 0, 0, _NUMBER.pack(self._owed)))
            self._owed = 0

    def _break(self, failure: Failure, why: str) -> None:
        self.is_broken = True
        self.out.put(self._goodbye(failure, why))

    def _goodbye(self, failure: Failure, why: str) -> bytes:
        return frame(
            Kind.GOAWAY, 0, 0, _NUMBER.pack(self._last) + _NUMBER.pack(failure) + why.encode()
        )


def _unpadded(flags: int, payload: bytes) -> bytes:
    if not flags & Flags.PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise Broken(Failure.PROTOCOL, "more padding than frame")
    return payload[1 : len(payload) - payload[0]]
