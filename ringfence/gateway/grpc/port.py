"""Listening port for gRPC over HTTP/2 on asyncio; one coroutine function answers all calls.

Decides the framing of messages, the encoding of errors, and the life cycle of connections. The
caller of `GrpcPort` supplies the gRPC methods.
"""

import asyncio
import logging
import socket
import ssl
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from enum import IntEnum
from functools import partial
from math import inf
from string import punctuation
from typing import TypeAlias
from urllib.parse import quote

from ringfence.errors import ConfigError
from ringfence.gateway.grpc.hpack import HeaderBlock
from ringfence.gateway.grpc.http2 import Http2, Request, StreamReset, TooLarge
from ringfence.gateway.grpc.http2_sender import STATUS_200, field
from ringfence.gateway.process.settings import GatewaySettings
from ringfence.transport.interface import Address

__all__ = ["Answer", "Answerer", "GrpcPort", "Refusal", "Status"]

logger = logging.getLogger("ringfence.gateway")

_MAX_AT_ONCE, _MAX_WATCHES = 4096, 4
"""Maximum of concurrent calls in total, and of watches per connection. Watches are not calls."""
_MAX_KEPT = 1 << 26
"""Maximum of buffered bytes in total. Above it, the connection with the most is closed."""
_ACCEPTED_AT_ONCE, _LOOK = 16, 1.0
"""Connections accepted before other work; seconds between checks for slow clients."""
_LONGEST_LIFE = 24 * 3600.0
"""Seconds after which a client must reconnect, possibly to a less busy worker."""
_PREFIX = 5
"""Prefix of a message: compression flag and length."""
_HEADER = STATUS_200 + field(b"content-type", b"application/grpc")
_PLAIN = punctuation.replace("%", "") + " "
_OK = field(b"grpc-status", b"0")
_NOT_GRPC = b"\x08\x03415" + field(b"content-type", b"text/plain")
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


Answer: TypeAlias = bytes | AsyncIterator[bytes]
"""One response message, or a stream of messages until the client disconnects."""
Answerer: TypeAlias = Callable[[HeaderBlock, bytes], Awaitable[Answer]]
"""Answers a call, given its header and message. May raise `Refusal`."""


class GrpcPort:
    """Listening gRPC port, with its connections."""

    def __init__(
        self, answer: Answerer, settings: GatewaySettings, on_refusal: Callable[[str], None]
    ) -> None:
        """`on_refusal` is called with the cause when the port itself refuses a call or a
        connection."""
        self.answer = answer
        self.settings = settings
        self.on_refusal = on_refusal
        self.calls = self.kept = 0
        """Number of gRPC calls in flight, and of buffered bytes of all connections."""
        self.turns: deque[Connection] = deque()
        """Connections with more unread bytes than one turn can process."""
        self.connections: dict[Connection, asyncio.Task[None]] = {}
        """Connections, each with the task that opens it, which may take a TLS handshake."""
        self._socket: socket.socket | None = None
        self._tls: ssl.SSLContext | None = None
        self._look: asyncio.TimerHandle | None = None
        self._last_gone = asyncio.Event()
        """Set when no connection is left. Meaningless while there are connections."""

    async def start(self, at: Address, tls: ssl.SSLContext | None) -> int:
        """Start to listen; return the port number. Raises `ConfigError` if the address cannot be
        bound."""
        host, port = at
        self._tls = tls
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            listening = socket.create_server(at, family=family, backlog=1024, reuse_port=True)
        except OSError as error:
            place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            raise ConfigError(f"cannot listen on {place} for gRPC: {error}") from error
        listening.setblocking(False)
        self._socket = listening
        self._close_slow_connections()
        return int(listening.getsockname()[1])

    async def stop(self, within: float) -> None:
        """Stop accepting calls, finish the calls in flight, then close all connections."""
        if self._look is not None:
            self._look.cancel()
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None
        self._last_gone.clear()
        for each in list(self.connections):
            each.drain()
        if self.connections:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._last_gone.wait(), within)
        for each, beginning in list(self.connections.items()):
            beginning.cancel()
            each.abort()

    def forget(self, connection: "Connection") -> None:
        """Remove a closed connection from the list of the port's connections."""
        self.connections.pop(connection, None)
        if not self.connections:
            self._last_gone.set()

    def keep(self, more: int) -> None:
        """Update the number of bytes that all connections together buffer.

        If it exceeds the maximum, close the connection that buffers the most bytes.
        """
        self.kept += more
        if self.kept > _MAX_KEPT and more > 0 and self.connections:
            self.on_refusal("memory")
            max(self.connections, key=lambda each: each.kept).abort()

    def take_turn(self) -> None:
        """Process unread bytes of one connection; others with unread bytes wait for their turn."""
        self.turns[0].data_received(b"")
        self.turns.popleft()
        if self.turns:
            asyncio.get_running_loop().call_soon(self.take_turn)

    def _accept(self, listening: socket.socket) -> None:
        """Accept a bounded number of waiting connections, then let other tasks run."""
        loop = asyncio.get_running_loop()
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                accepted, (host, *_) = listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:  # For example, no free file descriptor.
                self.on_refusal("accept_error")
                logger.error("grpc port: accept failed, retrying: error=%s", error)
                loop.remove_reader(listening)  # The next periodic check adds it again.
                return
            if self._has_room(host):
                connection = Connection(self, host)
                task = loop.create_task(self._connect(connection, accepted))
                self.connections[connection] = task
            else:
                accepted.close()

    async def _connect(self, connection: "Connection", accepted: socket.socket) -> None:
        slow = self.settings.header_timeout if self._tls else None
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, accepted, ssl=self._tls, ssl_handshake_timeout=slow
            )
        except (OSError, asyncio.CancelledError):
            self.on_refusal("handshake")
            self.forget(connection)

    def _has_room(self, host: str) -> bool:
        """Return whether a new connection fits the limits on connections.

        At a limit, close the connection that was idle longest; return False if none is idle.
        """
        rivals = [each for each in self.connections if each.host == host]
        if len(rivals) < self.settings.max_connections_per_address:
            rivals = list(self.connections)
            if len(rivals) < self.settings.max_connections:
                return True
        self.on_refusal("connections")
        longest = min(rivals, key=lambda each: each.idle_since)
        if longest.idle_since < inf:
            self.connections.pop(longest).cancel()
            longest.abort()
        return longest.idle_since < inf

    def _close_slow_connections(self) -> None:
        loop = asyncio.get_running_loop()
        for each in list(self.connections):
            each.give_up_slow(loop.time())
        if self._socket is not None:
            loop.add_reader(self._socket, self._accept, self._socket)
        self._look = loop.call_later(_LOOK, self._close_slow_connections)


class Connection(asyncio.Protocol):
    """One HTTP/2 connection of a gRPC client."""

    def __init__(self, port: GrpcPort, host: str) -> None:
        self.host = host
        self.kept = 0
        self._port = port
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._http2 = Http2(port.settings.max_body + _PREFIX, self._began)
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._watches: set[int] = set()
        self._transport: asyncio.Transport | None = None
        self._is_flush_planned = False
        self._is_reading = True
        self._full_since: float | None = None
        """Start of the period in which the client has read nothing."""

    @property
    def idle_since(self) -> float:
        """Return when the latest call on this connection started; infinity while a call is
        running."""
        return inf if len(self._tasks) > len(self._watches) else self._http2.last_request

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the HTTP/2 settings of this server."""
        self._transport = transport  # type: ignore[assignment]  # uvloop's has these methods.
        self._flush()

    def data_received(self, data: bytes) -> None:
        """Process bytes that the client sent."""
        if self._transport is None:
            return
        for each in self._http2.receive(data, self._loop.time()):
            match each:
                case Request():
                    self._begin(each)
                case StreamReset():
                    self._cancel(each.stream)
                case TooLarge():
                    self._port.on_refusal("too_large")
                    why = f"the message is larger than {self._port.settings.max_body} bytes"
                    self._refuse(each.stream, Refusal(Status.RESOURCE_EXHAUSTED, why))
        if self._http2.is_broken:
            self._port.on_refusal("bad_http2")
        self._flush()
        self._update_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel all calls of the closed connection."""
        self._transport = None
        self._port.forget(self)
        self._port.keep(-self.kept)
        for task in self._tasks.values():
            task.cancel()

    def pause_writing(self) -> None:
        """Pause reading from a client that does not read its responses."""
        self._full_since = self._loop.time()
        self._update_reading()

    def resume_writing(self) -> None:
        """Resume reading from a client that reads its responses again."""
        self._full_since = None
        self._update_reading()

    def drain(self) -> None:
        """Refuse new calls, and close the connection after the running calls have been answered."""
        self._http2.drain()
        self._flush()

    def abort(self) -> None:
        """Close the connection of a client immediately."""
        if self._transport is not None:
            self._transport.abort()

    def give_up_slow(self, now: float) -> None:
        """Reset slow calls; close the connection if it is idle or too old, or the client reads
        nothing."""
        http2, slow = self._http2, now - self._port.settings.body_timeout
        is_stuck = self._full_since is not None and self._full_since < slow
        if is_stuck or (self._transport is not None and self._transport.is_closing()):
            self._port.on_refusal("slow_reader")
            self.abort()
        for stream in http2.give_up_before(slow):
            self._port.on_refusal("request_timeout")
            self._cancel(stream)
        is_idle = http2.last_request < now - self._port.settings.idle_timeout
        if (is_idle and not http2.out.open) or self._began < now - _LONGEST_LIFE:
            http2.drain()
        self._flush()

    def _update_reading(self) -> None:
        """Pause or resume reading; it is paused while received bytes are unprocessed or the client
        does not read."""
        is_held = self._full_since is not None or self._http2.has_more
        if self._transport is not None and is_held == self._is_reading:
            self._is_reading = not is_held
            (self._transport.pause_reading if is_held else self._transport.resume_reading)()
        if self._http2.has_more and self._full_since is None:
            self._port.turns.append(self)
            if len(self._port.turns) == 1:
                self._loop.call_soon(self._port.take_turn)

    # -- calls ---------------------------------------------------------------------------------

    def _begin(self, request: Request) -> None:
        stream, port = request.stream, self._port
        cause = "bad_body"
        try:
            message, within = _message_of(request), _timeout_of(request.head)
            if port.calls >= _MAX_AT_ONCE:
                cause = "calls"
                raise Refusal(Status.RESOURCE_EXHAUSTED, "too many calls at once")
        except Refusal as refusal:
            port.on_refusal(cause)
            self._refuse(stream, refusal)
            return
        if message is None:
            port.on_refusal("no_grpc")
            self._http2.out.answer(stream, _NOT_GRPC, b"this port speaks gRPC only\n", b"")
            return
        port.calls += 1
        task = self._loop.create_task(self._serve(stream, request.head, message))
        self._tasks[stream] = task
        task.add_done_callback(partial(self._end, stream))
        if within is not None:
            timer = self._loop.call_later(within, self._expire, stream)
            task.add_done_callback(lambda _: timer.cancel())

    async def _serve(self, stream: int, head: HeaderBlock, message: bytes) -> None:
        try:
            answer = await self._port.answer(head, message)
            if isinstance(answer, bytes):
                self._http2.out.answer(stream, _HEADER, _framed(answer), _OK)
            else:
                self._watch(stream)
                async for each in answer:
                    self._http2.out.send_message(stream, _HEADER, _framed(each))
                    self._plan_flush()
                self._http2.out.end(stream, _OK)
        except Refusal as refusal:
            self._refuse(stream, refusal)
        except Exception:
            logger.exception("internal error in %s", head.path)
            self._port.on_refusal("bugs")
            self._refuse(
                stream, Refusal(Status.INTERNAL, "internal error of the gateway; see its log")
            )
        self._plan_flush()

    def _end(self, stream: int, task: asyncio.Task[None]) -> None:
        """Stop tracking a call that was answered or cancelled, possibly before its task started."""
        self._tasks.pop(stream, None)
        if stream in self._watches:
            self._watches.remove(stream)
        else:
            self._port.calls -= 1

    def _watch(self, stream: int) -> None:
        """Count a health watch, which has no deadline. Raises `Refusal` when there are too many."""
        if len(self._watches) >= _MAX_WATCHES:
            self._port.on_refusal("watches")
            why = f"a connection may have {_MAX_WATCHES} watches at once; end one first"
            raise Refusal(Status.RESOURCE_EXHAUSTED, why)
        self._watches.add(stream)
        self._port.calls -= 1

    def _expire(self, stream: int) -> None:
        """Answer a call whose `grpc-timeout` has expired with DEADLINE_EXCEEDED, and cancel its
        task."""
        self._port.on_refusal("deadline")
        self._refuse(
            stream, Refusal(Status.DEADLINE_EXCEEDED, "the deadline of the call has expired")
        )
        self._cancel(stream)
        self._plan_flush()

    def _cancel(self, stream: int) -> None:
        if stream in self._tasks:
            self._tasks[stream].cancel()

    def _refuse(self, stream: int, refusal: Refusal) -> None:
        trailers = field(b"grpc-status", str(int(refusal.status)).encode())
        trailers += field(b"grpc-message", _percent_encoded(str(refusal)[:1000]))
        # A response that consists of a trailer only includes the header fields.
        opened = self._http2.out.open.get(stream)
        header = b"" if opened is not None and opened.are_headers_sent else _HEADER
        self._http2.out.end(stream, header + trailers)

    # -- sending -------------------------------------------------------------------------------

    def _plan_flush(self) -> None:
        """Schedule one write for all responses that are ready in this iteration of the event
        loop."""
        if not self._is_flush_planned:
            self._is_flush_planned = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_planned = False
        transport = self._transport
        if transport is None:
            return
        written = self._http2.out.take()
        if written:
            transport.write(written)
        kept = self._http2.kept + transport.get_write_buffer_size()
        more, self.kept = kept - self.kept, kept
        self._port.keep(more)
        if self._http2.is_broken or (self._http2.is_draining and not self._http2.out.open):
            transport.close()


def _message_of(request: Request) -> bytes | None:
    """Extract the gRPC message from a request body; None if it is not gRPC. Raises `Refusal`."""
    head, body = request.head, request.body
    kind = head.fields.get("content-type", "")
    if head.method != "POST" or not kind.startswith("application/grpc"):
        return None
    if len(body) < _PREFIX or len(body) != _PREFIX + int.from_bytes(body[1:_PREFIX], "big"):
        raise Refusal(Status.INTERNAL, "a call takes exactly one message")
    if body[0]:
        raise Refusal(
            Status.UNIMPLEMENTED, "compressed messages are not supported; send them uncompressed"
        )
    return body[_PREFIX:]


def _timeout_of(head: HeaderBlock) -> float | None:
    """Parse the header `grpc-timeout`, in seconds; None if it is absent. Raises `Refusal`."""
    text = head.fields.get("grpc-timeout")
    if text is None:
        return None
    amount, unit = text[:-1], _UNITS.get(text[-1:])
    if unit is None or not amount.isdecimal() or len(amount) > 8:
        why = f"grpc-timeout must be up to 8 digits and a unit, got {text[:20]!r}; send e.g. 20m"
        raise Refusal(Status.INVALID_ARGUMENT, why)
    return min(int(amount) * unit, _LONGEST_LIFE)


def _framed(message: bytes) -> bytes:
    return b"\x00" + len(message).to_bytes(4, "big") + message


def _percent_encoded(text: str) -> bytes:
    """Percent-encode a status message for a gRPC header."""
    return quote(text, safe=_PLAIN).encode()
