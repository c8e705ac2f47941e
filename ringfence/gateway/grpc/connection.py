"""Connection of a gRPC client on the gateway's port, and its calls in flight.

Decides when a call needs a task, when its deadline ends, and when responses are written.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from math import inf
from typing import Protocol, TypeAlias

from ringfence.gateway.grpc.grpc_messages import (
    HEADER,
    NOT_GRPC,
    OK,
    PREFIX,
    Refusal,
    Status,
    framed,
    message_of,
    timeout_of,
    trailers_of,
)
from ringfence.gateway.grpc.hpack import HeaderBlock
from ringfence.gateway.grpc.http2 import Http2, Request, StreamReset, TooLarge
from ringfence.gateway.process.settings import GatewaySettings
from ringfence.peering.target import StartedCheck

__all__ = ["Answer", "Answerer", "Beginner", "Call", "Connection"]

logger = logging.getLogger("ringfence.gateway")

_MAX_AT_ONCE, _MAX_WATCHES = 4096, 4
"""Maximum of concurrent calls in total, and of watches per connection. Watches are not calls."""
_LONGEST_LIFE = 24 * 3600.0
"""Seconds after which a client must reconnect, possibly to a less busy worker."""

Answer: TypeAlias = bytes | AsyncIterator[bytes]
"""One response message, or a stream of messages until the client disconnects."""
Answerer: TypeAlias = Callable[[HeaderBlock, bytes], Awaitable[Answer]]
"""Answers a call, given its header and message. May raise any error."""
Beginner: TypeAlias = Callable[[HeaderBlock, bytes, "Call"], bool]
"""Begins a call that needs no task; returns False if the `Answerer` must answer it. May raise any
error."""


class Port(Protocol):
    """Listening port to which connections belong; see `GrpcPort`."""

    answer: Answerer
    begin: Beginner
    refusal_of: Callable[[Exception], Refusal | None]
    settings: GatewaySettings
    on_refusal: Callable[[str], None]
    calls: int
    turns: "deque[Connection]"

    def forget(self, connection: "Connection") -> None:
        """Remove a closed connection."""

    def keep(self, more: int) -> None:
        """Update the number of bytes that all connections together buffer."""

    def plan_flush(self, connection: "Connection") -> None:
        """Send the responses of a connection soon."""

    def take_turn(self) -> None:
        """Process unread bytes of one connection."""


class Call:
    """gRPC call in flight."""

    __slots__ = ("_connection", "check", "due", "is_watch", "stream", "task")

    def __init__(self, connection: "Connection", stream: int, due: float) -> None:
        self.check: StartedCheck | None = None
        """Check that must be cancelled with the call."""
        self.stream = stream
        self.due = due
        """Time at which the deadline of the client ends."""
        self.task: asyncio.Task[None] | None = None
        self.is_watch = False
        self._connection = connection

    def answer(self, message: bytes) -> None:
        """Send the response of a call without a task."""
        self._connection.answer(self, message)

    def resume(self, answer: Callable[[], Awaitable[Answer]]) -> None:
        """Run the rest of the call in a task, and send its response or its error."""
        self._connection.serve(self, answer)

    def fail(self, error: Exception) -> None:
        """Refuse a call without a task, because of an error."""
        self._connection.fail(self, error)

    def cancel(self) -> None:
        """End the call without a response."""
        check, self.check = self.check, None
        if check is not None:
            check.cancel()
        if self.task is None:
            self._connection.end(self)
        else:
            self.task.cancel()


class Connection(asyncio.Protocol):
    """One HTTP/2 connection of a gRPC client."""

    def __init__(self, port: Port, host: str) -> None:
        self.host = host
        self.kept = 0
        self._port = port
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._http2 = Http2(port.settings.max_body + PREFIX, self._began)
        self._calls: dict[int, Call] = {}
        """Calls in flight by stream."""
        self._watches = 0
        """Number of calls in flight that are watches."""
        self._first_due = inf
        """Time at which `_deadline_timer` fires."""
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self._is_flush_planned = False
        self._is_reading = True
        self._full_since: float | None = None
        """Start of the period in which the client has read nothing."""

    @property
    def idle_since(self) -> float:
        """Return when the latest call on this connection started; infinity while a call is
        running."""
        return inf if len(self._calls) > self._watches else self._http2.last_request

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the HTTP/2 settings of this server."""
        self._transport = transport  # type: ignore[assignment]  # uvloop's has these methods.
        self.flush()

    def data_received(self, data: bytes) -> None:
        """Process bytes that the client sent."""
        if self._transport is None:
            return
        self._is_flush_planned = True
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
        self.flush()
        self._update_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel all calls of the closed connection."""
        self._transport = None
        self._port.forget(self)
        self._port.keep(-self.kept)
        for call in list(self._calls.values()):
            call.cancel()
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()

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
        self.flush()

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
        self.flush()

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
            message = message_of(request)
            within = timeout_of(request.head.fields.get("grpc-timeout"))
            if port.calls >= _MAX_AT_ONCE:
                cause = "calls"
                raise Refusal(Status.RESOURCE_EXHAUSTED, "too many calls at once")
        except Refusal as refusal:
            port.on_refusal(cause)
            self._refuse(stream, refusal)
            return
        if message is None:
            port.on_refusal("no_grpc")
            self._http2.out.answer(stream, NOT_GRPC, b"this port speaks gRPC only\n", b"")
            return
        port.calls += 1
        call = Call(self, stream, inf if within is None else self._loop.time() + within)
        self._calls[stream] = call
        if call.due < self._first_due:
            self._watch_deadlines(call.due)
        try:
            if not port.begin(request.head, message, call):
                self.serve(call, partial(port.answer, request.head, message))
        except Exception as error:  # noqa: BLE001 - a bug must end one call only.
            self.fail(call, error)

    def answer(self, call: Call, message: bytes) -> None:
        """Send the response of a call without a task."""
        self.end(call)
        self._http2.out.answer(call.stream, HEADER, framed(message), OK)
        self._plan_flush()

    def fail(self, call: Call, error: Exception) -> None:
        """Refuse a call without a task, because of an error."""
        self.end(call)
        self._refuse_error(call.stream, error)
        self._plan_flush()

    def serve(self, call: Call, answer: Callable[[], Awaitable[Answer]]) -> None:
        """Answer a call by a task."""
        call.task = self._loop.create_task(self._serve(call, answer))
        call.task.add_done_callback(partial(self._on_task_done, call))

    async def _serve(self, call: Call, begin: Callable[[], Awaitable[Answer]]) -> None:
        call.check = None  # From now on, the task cancels the check.
        stream = call.stream
        try:
            answer = await begin()
            if isinstance(answer, bytes):
                self._http2.out.answer(stream, HEADER, framed(answer), OK)
            else:
                self._watch(call)
                async for each in answer:
                    self._http2.out.send_message(stream, HEADER, framed(each))
                    self._plan_flush()
                self._http2.out.end(stream, OK)
        except Exception as error:  # noqa: BLE001 - a bug must end one call only.
            self._refuse_error(stream, error)
        self._plan_flush()

    def _on_task_done(self, call: Call, task: asyncio.Task[None]) -> None:
        """Stop tracking a call whose task has ended, or was cancelled before it started."""
        self.end(call)

    def end(self, call: Call) -> None:
        """Stop tracking a call that was answered or cancelled."""
        if self._calls.pop(call.stream, None) is None:
            return
        if call.is_watch:
            self._watches -= 1
        else:
            self._port.calls -= 1

    def _watch(self, call: Call) -> None:
        """Count a health watch, which has no deadline. Raises `Refusal` when there are too many."""
        if self._watches >= _MAX_WATCHES:
            self._port.on_refusal("watches")
            why = f"a connection may have {_MAX_WATCHES} watches at once; end one first"
            raise Refusal(Status.RESOURCE_EXHAUSTED, why)
        call.is_watch = True
        self._watches += 1
        self._port.calls -= 1

    def _watch_deadlines(self, first: float) -> None:
        """Set the timer of the calls' deadlines. It may fire early, because answered calls leave
        it unchanged."""
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
        self._first_due = first
        self._deadline_timer = self._loop.call_at(first, self._expire)

    def _expire(self) -> None:
        """Answer calls whose `grpc-timeout` has expired with DEADLINE_EXCEEDED, and cancel them."""
        self._deadline_timer, self._first_due = None, inf
        now = self._loop.time()
        for call in [call for call in self._calls.values() if call.due <= now]:
            call.due = inf
            self._port.on_refusal("deadline")
            why = "the deadline of the call has expired"
            self._refuse(call.stream, Refusal(Status.DEADLINE_EXCEEDED, why))
            call.cancel()
        first = min([call.due for call in self._calls.values()], default=inf)
        if first < inf:
            self._watch_deadlines(first)
        self._plan_flush()

    def _cancel(self, stream: int) -> None:
        call = self._calls.get(stream)
        if call is not None:
            call.cancel()

    def _refuse_error(self, stream: int, error: Exception) -> None:
        """Answer a call with the status of an error."""
        refusal = error if isinstance(error, Refusal) else self._port.refusal_of(error)
        if refusal is None:
            logger.error("internal error in a gRPC call", exc_info=error)
            self._port.on_refusal("bugs")
            refusal = Refusal(Status.INTERNAL, "internal error of the gateway; see its log")
        self._refuse(stream, refusal)

    def _refuse(self, stream: int, refusal: Refusal) -> None:
        # A response that consists of a trailer only includes the header fields.
        opened = self._http2.out.open.get(stream)
        header = b"" if opened is not None and opened.are_headers_sent else HEADER
        self._http2.out.end(stream, header + trailers_of(refusal))

    # -- sending -------------------------------------------------------------------------------

    def _plan_flush(self) -> None:
        """Schedule one write for all responses that are ready in this iteration of the event
        loop."""
        if not self._is_flush_planned:
            self._is_flush_planned = True
            self._port.plan_flush(self)

    def flush(self) -> None:
        """Send the queued frames, and update the number of buffered bytes."""
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
