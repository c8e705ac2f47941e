"""One HTTP/1.1 connection to the admin port, parsed by h11, with time-outs and size limits.

Only HTTP/1.0 and HTTP/1.1 are supported. HTTP/2 would let one connection open and cancel any number
of streams. A proposed upgrade is ignored: the request is answered over HTTP/1.1.
"""

import ssl
from collections.abc import Callable
from email.utils import formatdate

import h11
import trio
from msgspec import Struct

from node.admin.http_messages import AdminRequest, AdminResponse, Handler, HttpProblem
from node.admin.throttle import Throttle

__all__ = ["AdminConnection", "AdminLimits"]

_READ_SIZE = 16 << 10
_LINGER_TIME = 0.3
"""Seconds for which input is discarded before the close. An earlier close could reset the
connection before the client has read the last response."""
_MAX_BODY = 4096
_TITLES = {431: "the headers are too long", 501: "this transfer encoding is not supported"}
_REMEDIES = {431: "send fewer or shorter headers, and a shorter path"}


class AdminLimits(Struct, frozen=True):
    """Limits of the admin port on connections, time, size and rate; seconds and bytes."""

    connections: int = 64
    """Maximum of open connections. One more closes a connection of the address that has most."""
    connections_per_address: int = 32
    """Maximum of open connections of one address, IPv6 by /64. One more closes the longest idle."""
    connections_per_second: float = 300.0
    """Rate at which new connections are served. TLS halves it. One address gets two thirds.
    Connections beyond the rate wait."""
    header_bytes: int = 16 << 10
    """Maximum size of the request line and headers."""
    handshake: float = 3.0
    """Time-out of the TLS handshake."""
    request: float = 5.0
    """Time-out of receiving a request, from its first byte. For the first request of a connection
    it starts when the connection is open."""
    answer: float = 15.0
    """Time-out of answering: from the complete request until the response has been sent."""
    idle: float = 75.0
    """Time-out between two requests."""
    requests_per_second: float = 100.0
    """Requests with a token, of all clients together. Requests beyond the rate wait."""
    reads_per_second: float = 1000.0
    """Socket reads of all connections together. Reads beyond the rate wait."""


class AdminConnection:
    """One accepted socket of the admin port, and its HTTP state."""

    def __init__(
        self,
        handler: Handler,
        socket_stream: trio.SocketStream,
        group: str,
        tls: ssl.SSLContext | None,
        limits: AdminLimits,
        reads: Throttle,
        on_refused: Callable[[str], None],
    ) -> None:
        """`on_refused` receives the cause when a request or the connection is refused."""
        self.is_busy = False
        """Whether a request is being answered."""
        self.is_ending = False
        """Whether the last response has been sent."""
        self.group = group
        """Address of the client, IPv6 by network."""
        self._handler = handler
        self._socket_stream = socket_stream
        self._stream: trio.SocketStream | trio.SSLStream[trio.SocketStream] = socket_stream
        self._tls = tls
        self._limits = limits
        self._reads = reads
        self._on_refused = on_refused
        self._scope = trio.CancelScope()
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.header_bytes)
        self._is_head = False
        """Whether the current request has the method HEAD: its response has no body."""

    def close(self) -> None:
        """Close the connection immediately, even during a response."""
        self._scope.cancel()

    async def run(self) -> None:
        """Serve requests until the client closes, a time-out expires, or `close` is called."""
        try:
            with self._scope:
                await self._handshake()
                await self._serve()
                self.is_ending = True
                await self._linger()
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # The client has closed or reset the connection.
        except trio.TooSlowError:
            self._on_refused("http_handshake")
        finally:
            await trio.aclose_forcefully(self._stream)

    async def _handshake(self) -> None:
        if self._tls is None:
            return
        self._stream = trio.SSLStream(
            self._socket_stream, self._tls, server_side=True, https_compatible=True
        )
        try:
            with trio.fail_after(self._limits.handshake):
                await self._stream.do_handshake()
        except trio.BrokenResourceError:
            self._on_refused("http_handshake")
            raise

    async def _serve(self) -> None:
        """Answer requests in order until one of them ends the connection."""
        is_first = True
        while await self._serve_request(is_first):
            is_first = False

    async def _serve_request(self, is_first: bool) -> bool:
        """Receive and answer one request. Return whether the connection takes another one."""
        try:
            request = await self._receive_request(is_first)
        except h11.RemoteProtocolError as error:
            self._on_refused("http_malformed")
            await self._send_problem(_malformed(error.error_status_hint))
            return False
        except HttpProblem as problem:
            self._on_refused(f"http_{problem.status}")
            await self._send_problem(problem)
            return False
        if request is None:
            return False
        self.is_busy = True
        with trio.move_on_after(self._limits.answer) as answering:
            await self._answer(request)
        if answering.cancelled_caught:
            return False
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        self.is_busy = False
        return True

    async def _receive_request(self, is_first: bool) -> AdminRequest | None:
        """Receive a request and drop its body. Return None when there is none to answer.

        Raises `h11.RemoteProtocolError` for bytes that are not HTTP/1.1, and `HttpProblem` for a
        request that is too large or too slow.
        """
        # Bytes of a pipelined request may have arrived with the previous one.
        has_begun = is_first or bool(self._http.trailing_data[0])
        request: AdminRequest | None = None
        self._is_head = False
        body_size = 0
        with trio.move_on_after(self._limits.request if has_begun else self._limits.idle) as scope:
            while True:
                match self._http.next_event():
                    case h11.Request() as head:
                        if head.http_version not in (b"1.0", b"1.1"):
                            self._on_refused("http_2")
                            return None
                        request = _request_of(head)
                        self._is_head = request.method == "HEAD"
                        _check_body_size(_content_length(request))
                        await self._invite_body()
                    case h11.Data(data=data):
                        body_size += len(data)
                        _check_body_size(body_size)
                    case h11.EndOfMessage():
                        return request
                    case h11.ConnectionClosed():
                        return None
                    case _:
                        await self._read()
                        if not has_begun:
                            has_begun = True
                            scope.deadline = trio.current_time() + self._limits.request
        if not has_begun:
            return None
        self._on_refused("http_slow_request")
        if is_first and self._http.trailing_data == (b"", False) and request is None:
            return None  # The client has sent nothing and expects no response.
        await self._send_problem(
            HttpProblem(408, "the request did not arrive in time", "send it without pauses")
        )
        return None

    async def _read(self) -> None:
        await self._reads.turn()
        self._http.receive_data(bytes(await self._stream.receive_some(_READ_SIZE)))

    async def _invite_body(self) -> None:
        if self._http.they_are_waiting_for_100_continue:
            await self._send(h11.InformationalResponse(status_code=100, headers=[]))

    async def _answer(self, request: AdminRequest) -> None:
        response = await self._handler(request)
        try:
            await self._send_response(response)
        finally:
            if response.on_sent is not None:  # Runs also if the client has disconnected.
                response.on_sent()

    async def _send_problem(self, problem: HttpProblem) -> None:
        """Send an error response as the last one of the connection; a client that does not read may
        miss it."""
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        with trio.move_on_after(_LINGER_TIME):
            await self._send_response(problem.response().as_last())

    async def _send_response(self, response: AdminResponse) -> None:
        date = formatdate(usegmt=True).encode("ascii")
        head = h11.Response(
            status_code=response.status, headers=[*response.all_headers(), (b"date", date)]
        )
        body = [] if self._is_head else [h11.Data(data=response.body)]
        await self._send(head, *body, h11.EndOfMessage())

    async def _send(self, *events: h11.Event) -> None:
        """Send several HTTP events of the h11 library in one write."""
        await self._stream.send_all(b"".join([self._http.send(event) or b"" for event in events]))

    async def _linger(self) -> None:
        """Close the sending side of the connection, then discard input briefly so that the client
        can read the last response."""
        with trio.move_on_after(_LINGER_TIME):
            if isinstance(self._stream, trio.abc.HalfCloseableStream):  # TLS has no half-close.
                await self._stream.send_eof()
            while await self._stream.receive_some(_READ_SIZE):
                await self._reads.turn()


def _request_of(head: h11.Request) -> AdminRequest:
    path, _, query = head.target.partition(b"?")
    return AdminRequest(
        head.method.decode("ascii"), path.decode("latin-1"), query, dict(head.headers)
    )


def _content_length(request: AdminRequest) -> int:
    return int(request.headers.get(b"content-length", b"0"))  # h11 has checked the digits.


def _check_body_size(size: int) -> None:
    if size > _MAX_BODY:
        raise HttpProblem(
            413,
            f"the body must have at most {_MAX_BODY} bytes",
            "send none: no path of this port reads a body",
        )


def _malformed(status: int) -> HttpProblem:
    title = _TITLES.get(status, "the request must be HTTP/1.1")
    return HttpProblem(
        status, title, _REMEDIES.get(status, "send an HTTP/1.1 request, as curl does")
    )
