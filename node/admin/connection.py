"""One connection to the operator's port: Hypercorn's HTTP/1.1 and the clock that ends it.

Hypercorn speaks the protocol; how long a connection may take over what, and how it ends, is
decided here, for Hypercorn's own server has no bound for either. Only HTTP/1.1 is spoken: where
streams can be opened and dropped at will, one connection would be as good as a thousand.
"""

import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import trio
from h11 import Data, EndOfMessage, Response
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.h11 import H2CProtocolRequiredError, H2ProtocolAssumedError, H11Protocol
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState

from node.admin.responses import Problem
from node.admin.throttle import Throttle

__all__ = ["Connection", "Limits"]

_CHUNK = 16 << 10
_LINGER = 0.3
"""Seconds for which what still comes is read away, so that our last answer is not lost."""
_MENDS = {
    400: "send an HTTP/1.1 request, as curl does",
    431: "send fewer or shorter headers, and a shorter path",
}


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one asker may have; seconds and bytes."""

    connections: int = 64
    """Most open connections; one more closes a connection of the address that has most."""
    connections_per_address: int = 32
    """Most open connections of one address, IPv6 by /64; one more closes the longest idle one."""
    connections_per_second: float = 300.0
    """Connections that begin to be served, half of it with TLS, two thirds of that for one address;
    beyond that they wait for their turn."""
    header_bytes: int = 16 << 10
    handshake: float = 3.0
    request: float = 5.0
    """From a connection's beginning, or a request's first byte, to the end of its headers."""
    answer: float = 15.0
    """From there until the answer has been read by whoever asked."""
    idle: float = 75.0
    """Between two requests."""
    requests_per_second: float = 100.0
    """Requests with a token, of all clients together; beyond that they wait for their turn."""
    reads_per_second: float = 1000.0
    """Reads of all connections together; beyond that they wait for their turn."""


class Connection:
    """One accepted socket."""

    def __init__(
        self,
        app: ASGIWrapper,
        config: Config,
        context: WorkerContext,
        raw: trio.SocketStream,
        group: str,
        tls: ssl.SSLContext | None,
        limits: Limits,
        pace: Throttle,
        refused: Callable[[str], None],
    ) -> None:
        self.is_busy = False
        """Whether a request is being answered."""
        self.is_ending = False
        """Whether the last answer has been sent."""
        self.group = group
        """Address of the client, IPv6 by network."""
        self._app = app
        self._config = config
        self._context = context
        self._raw = raw
        self._tls = tls
        self._limits = limits
        self._pace = pace
        self._refused = refused
        self._scope = trio.CancelScope()
        self._stream: trio.SocketStream | trio.SSLStream[trio.SocketStream] = raw
        self._protocol: _Http1 | None = None
        self._has_begun = True
        self._sending = trio.Lock()

    def end(self) -> None:
        """Close at once, whatever is going on."""
        self._scope.cancel()

    async def run(self) -> None:
        """Serve until either side ends it or its time is over."""
        try:
            with self._scope:
                await self._shake_hands()
                self._give(self._limits.request)
                await self._serve()
            if self._scope.cancelled_caught and self._has_begun and not self.is_busy:
                self._refused("http_slow_request")
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # It is gone.
        except trio.TooSlowError:
            self._refused("http_handshake")
        finally:
            await trio.aclose_forcefully(self._stream)

    async def _shake_hands(self) -> None:
        if self._tls is None:
            return
        self._stream = trio.SSLStream(self._raw, self._tls, server_side=True, https_compatible=True)
        try:
            with trio.fail_after(self._limits.handshake):
                await self._stream.do_handshake()
        except trio.BrokenResourceError:
            self._refused("http_handshake")
            raise

    async def _serve(self) -> None:
        async with TaskGroup() as group:
            self._protocol = _Http1(
                self._app,
                self._config,
                self._context,
                group,
                ConnectionState({}),
                self._tls is not None,
                _name_of(self._raw.socket.getpeername()),
                _name_of(self._raw.socket.getsockname()),
                self._on_event,
            )
            self._protocol.is_cut = lambda: self._scope.cancel_called
            await self._read(self._protocol)
        await self._linger()

    async def _read(self, protocol: "_Http1") -> None:
        """Feed the protocol; while a request is answered it takes no more and we wait in it."""
        while not self.is_ending:
            await self._pace.turn()
            try:
                data = bytes(await self._stream.receive_some(_CHUNK))
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return
            if data and not self.is_busy and not self._has_begun:
                self._has_begun = True
                self._give(self._limits.request)
            try:
                await protocol.handle(RawData(data))
            except (H2ProtocolAssumedError, H2CProtocolRequiredError):
                self._refused("http_2")
                return
            if protocol.is_broken:
                self._refused("http_malformed")
                return
            if not data:
                return

    async def _on_event(self, event: Event) -> None:
        match event:
            case RawData(data):
                if data:
                    await self._send(data)
            case Updated(idle):
                self.is_busy = not idle
                self._has_begun = False
                self._give(self._limits.idle if idle else self._limits.answer)
            case Closed():
                self.is_ending = True
                await self._finish()

    async def _send(self, data: bytes) -> None:
        try:
            async with self._sending:
                await self._stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.end()  # Whoever asked has gone.

    async def _finish(self) -> None:
        """Say that nothing more comes; whoever reads on the other side then closes."""
        if not isinstance(self._stream, trio.abc.HalfCloseableStream):
            return  # TLS has no such thing.
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError, trio.BusyResourceError):
            await self._stream.send_eof()

    async def _linger(self) -> None:
        with trio.move_on_after(_LINGER):
            await self._finish()
            while await self._stream.receive_some(_CHUNK):
                await self._pace.turn()

    def _give(self, seconds: float) -> None:
        self._scope.deadline = trio.current_time() + seconds


class _Http1(H11Protocol):
    """One whose answers to broken requests say what is wrong."""

    is_cut: Callable[[], bool]
    """Whether the connection is being closed, perhaps in the middle of an answer."""

    async def stream_send(self, event: StreamEvent) -> None:
        """Send, unless the connection is closing: then Hypercorn answers 500 by itself."""
        if not self.is_cut():
            await super().stream_send(event)

    @property
    def is_broken(self) -> bool:
        """Whether what came is no HTTP."""
        return str(self.connection.their_state) == "ERROR"

    async def _send_error_response(self, status_code: int) -> None:
        what = "the headers are too long" if status_code == 431 else "this is no HTTP/1.1 request"
        mend = _MENDS.get(status_code, _MENDS[400])
        reply = Problem(status_code, what, mend).reply()
        headers = [*reply.all_headers(), (b"connection", b"close")]
        await self._send_h11_event(Response(status_code=status_code, headers=headers))
        await self._send_h11_event(Data(data=reply.body))
        await self._send_h11_event(EndOfMessage())


def _name_of(address: tuple[str, int]) -> tuple[str, int]:
    return address[0], address[1]
