"""gRPC over HTTP/2 on asyncio: a port whose calls are answered by one coroutine function.

Decides how messages are framed, how refusals read, and how connections begin and end. What the
calls are is told by whoever opens the port.
"""

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from enum import IntEnum
from functools import partial
from typing import TypeAlias

from ringfence.errors import ConfigError
from ringfence.gateway.http2 import Gone, Http2, Request, TooLarge
from ringfence.gateway.http2_heads import Head
from ringfence.gateway.http2_out import STATUS_200, field
from ringfence.transport.interface import Address

__all__ = ["Answer", "Answerer", "GrpcPort", "Refusal", "Status"]

logger = logging.getLogger("ringfence.gateway")

_MOST_AT_ONCE = 4096
_LOOK = 1.0
"""Seconds between looks for callers that are slow."""
_LONGEST_LIFE = 24 * 3600.0
"""After so long a caller is asked to connect anew: perhaps to a worker with less to do."""
_PREFIX = 5
"""Bytes before a message: whether it is compressed, and its length."""
_HEADER = field(b"content-type", b"application/grpc")
_OK = field(b"grpc-status", b"0")
_NO_GRPC = b"\x08\x03415"
"""`:status: 415`: what calls us speaks HTTP/2, but not gRPC."""


class Status(IntEnum):
    """gRPC's status codes, those that we send."""

    OK = 0
    INVALID_ARGUMENT = 3
    NOT_FOUND = 5
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


class Refusal(Exception):
    """A call is answered by a status other than OK."""

    def __init__(self, status: Status, why: str) -> None:
        super().__init__(why)
        self.status = status


Answer: TypeAlias = bytes | AsyncIterator[bytes]
"""A message, or one after the other until the caller has gone."""
Answerer: TypeAlias = Callable[[Head, bytes], Awaitable[Answer]]
"""Answers a call, told its header and its message. Raises `Refusal`."""


class GrpcPort:
    """Listens until stopped."""

    def __init__(
        self, answer: Answerer, max_message: int, patience: float, on_refusal: Callable[[str], None]
    ) -> None:
        """`patience` is how many seconds a caller may take over sending a call.

        `on_refusal` is told the cause when something is turned away that `answer` never saw.
        """
        self.answer = answer
        self.max_message = max_message
        self.on_refusal = on_refusal
        self.calls = 0
        """How many are being answered."""
        self.connections: dict[Connection, None] = {}
        self._patience = patience
        self._server: asyncio.Server | None = None
        self._look: asyncio.TimerHandle | None = None
        self._last_gone = asyncio.Event()
        """Of no meaning while there are connections."""

    async def start(self, at: Address, tls: ssl.SSLContext | None) -> int:
        """Listen; returns the port. Raises `ConfigError` when it cannot be had."""
        host, port = at
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: Connection(self), host, port, ssl=tls, reuse_port=True, backlog=1024
            )
        except OSError as error:
            place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            raise ConfigError(f"cannot listen on {place} for gRPC: {error}") from error
        self._look_for_slow_ones()
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def stop(self, within: float) -> None:
        """Tell everybody to go elsewhere, finish what is under way, close."""
        if self._server is not None:
            self._server.close()
        self._last_gone.clear()
        for each in list(self.connections):
            each.drain()
        if self.connections:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._last_gone.wait(), within)
        for each in list(self.connections):
            each.abort()
        if self._look is not None:
            self._look.cancel()

    def forget(self, connection: "Connection") -> None:
        """A connection has ended."""
        self.connections.pop(connection, None)
        if not self.connections:
            self._last_gone.set()

    def _look_for_slow_ones(self) -> None:
        loop = asyncio.get_running_loop()
        for each in list(self.connections):
            each.give_up_slow(loop.time() - self._patience, loop.time() - _LONGEST_LIFE)
        self._look = loop.call_later(_LOOK, self._look_for_slow_ones)


class Connection(asyncio.Protocol):
    """One caller."""

    def __init__(self, port: GrpcPort) -> None:
        self._port = port
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._http2 = Http2(port.max_message + _PREFIX, self._began)
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._transport: asyncio.Transport | None = None
        self._is_flush_planned = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say what we take."""
        self._transport = transport  # type: ignore[assignment]  # uvloop's is one by its methods.
        self._port.connections[self] = None
        self._flush()

    def data_received(self, data: bytes) -> None:
        """Take calls."""
        for each in self._http2.receive(data, self._loop.time()):
            match each:
                case Request():
                    self._begin(each)
                case Gone():
                    self._cancel(each.stream)
                case TooLarge():
                    self._port.on_refusal("too_large")
                    most = self._port.max_message
                    why = f"the message is larger than {most} bytes"
                    self._refuse(each.stream, Refusal(Status.RESOURCE_EXHAUSTED, why))
        if self._http2.is_broken:
            self._port.on_refusal("bad_http2")
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody waits for the answers."""
        self._transport = None
        self._port.forget(self)
        for task in self._tasks.values():
            task.cancel()

    def pause_writing(self) -> None:
        """Take no more from a caller that does not read."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Go on."""
        if self._transport is not None:
            self._transport.resume_reading()

    def drain(self) -> None:
        """Take no new calls, and close when those that are under way are answered."""
        self._http2.drain()
        self._flush()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def give_up_slow(self, instant: float, eldest: float) -> None:
        """Give up calls that began to come before an instant; let go who came before the eldest."""
        for _ in self._http2.give_up_before(instant):
            self._port.on_refusal("request_timeout")
        if self._began < eldest:
            self._http2.drain()
        self._flush()

    # -- calls ---------------------------------------------------------------------------------

    def _begin(self, request: Request) -> None:
        try:
            message = _message_of(request)
            if self._port.calls >= _MOST_AT_ONCE:
                raise Refusal(Status.RESOURCE_EXHAUSTED, "too many calls at once")
        except Refusal as refusal:
            self._port.on_refusal("bad_body")
            self._refuse(request.stream, refusal)
            return
        if message is None:
            self._port.on_refusal("no_grpc")
            self._http2.out.end(request.stream, _NO_GRPC)
            return
        self._port.calls += 1
        task = self._loop.create_task(self._serve(request.stream, request.head, message))
        self._tasks[request.stream] = task
        task.add_done_callback(partial(self._end, request.stream))

    async def _serve(self, stream: int, head: Head, message: bytes) -> None:
        try:
            answer = await self._port.answer(head, message)
            if isinstance(answer, bytes):
                self._http2.out.answer(stream, _HEADER, _framed(answer), _OK)
            else:
                async for each in answer:
                    self._http2.out.tell(stream, _HEADER, _framed(each))
                    self._plan_to_flush()
                self._http2.out.end(stream, _OK)
        except Refusal as refusal:
            self._refuse(stream, refusal)
        except Exception:
            logger.exception("a bug in Ringfence, met by %s", head.path)
            self._port.on_refusal("bugs")
            self._refuse(stream, Refusal(Status.INTERNAL, "a bug in the gateway; see its log"))
        self._plan_to_flush()

    def _end(self, stream: int, task: asyncio.Task[None]) -> None:
        """A call is answered, or was cancelled, perhaps before it began."""
        self._port.calls -= 1
        self._tasks.pop(stream, None)

    def _cancel(self, stream: int) -> None:
        task = self._tasks.get(stream)
        if task is not None:
            task.cancel()

    def _refuse(self, stream: int, refusal: Refusal) -> None:
        told = field(b"grpc-status", str(int(refusal.status)).encode())
        told += field(b"grpc-message", _percent_encoded(str(refusal)))
        # An answer of nothing but a trailer has the header's fields in it.
        header = b"" if self._http2.out.is_told(stream) else STATUS_200 + _HEADER
        self._http2.out.end(stream, header + told)

    # -- sending -------------------------------------------------------------------------------

    def _plan_to_flush(self) -> None:
        """Let answers that are ready now leave together."""
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
        if self._http2.is_broken or (self._http2.is_draining and not self._http2.out.streams):
            transport.close()


def _message_of(request: Request) -> bytes | None:
    """Take a message out of its frame; None when this is no gRPC. Raises `Refusal`."""
    head, body = request.head, request.body
    kind = head.fields.get("content-type", "")
    if head.method != "POST" or not kind.startswith("application/grpc"):
        return None
    if len(body) < _PREFIX or len(body) != _PREFIX + int.from_bytes(body[1:_PREFIX], "big"):
        raise Refusal(Status.INTERNAL, "a call takes exactly one message")
    if body[0]:
        raise Refusal(Status.UNIMPLEMENTED, "compressed messages are not taken; send them plain")
    return body[_PREFIX:]


def _framed(message: bytes) -> bytes:
    return b"\x00" + len(message).to_bytes(4, "big") + message


def _percent_encoded(text: str) -> bytes:
    """Write a status message as gRPC wants it in a header."""
    return "".join(
        [
            chr(byte) if 0x20 <= byte <= 0x7E and byte != 0x25 else f"%{byte:02X}"
            for byte in text.encode()
        ]
    ).encode()
