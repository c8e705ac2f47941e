"""UDP transport under asyncio, which clients in asyncio applications use.

No task waits for datagrams or timers: the event loop calls this code directly, which costs a
fraction of a task switch. `udp_transport` does everything else.
"""

import asyncio
import select
import socket
from collections.abc import Callable
from math import inf

import anyio
from anyio.abc import TaskStatus

from ringfence.errors import ConfigError
from ringfence.transport.interface import Address
from ringfence.transport.udp.udp_transport import AddressInfo, UdpTransport

__all__ = ["AsyncioUdp"]

_CLOCK_RESOLUTION = 0.001
"""Resolution of uvloop's clock in seconds. An earlier deadline would fire again and again."""


class AsyncioUdp(UdpTransport):
    """Transport over UDP for asyncio; it does nothing before `run`."""

    _loop: asyncio.AbstractEventLoop | None = None
    """Event loop while `run` runs, else None."""
    _resolving: set[asyncio.Task[None]]
    """Tasks that resolve names."""
    _timer: asyncio.TimerHandle | None = None
    _due: float = inf
    _is_flush_scheduled: bool = False

    async def run(self, *, task_status: TaskStatus[Address] = anyio.TASK_STATUS_IGNORED) -> None:
        """Send and receive datagrams until cancelled, then close every connection.

        Calls `task_status.started(address)` when messages can be sent. Raises `ConfigError` when
        the address cannot be bound.
        """
        loop = asyncio.get_running_loop()
        sock = self._open(await self._bind_rows(loop))
        self._loop, self._resolving = loop, set()
        reader = _watchable(loop, sock)
        loop.add_reader(reader, self._run_callback, self._read)
        try:
            if self._soon:
                self._wake_flusher()
            task_status.started(self.address)
            await loop.create_future()  # Until cancelled.
        finally:
            loop.remove_reader(reader)
            if reader is not sock:
                reader.close()
            self._loop = None
            if self._timer is not None:
                self._timer.cancel()
            for task in self._resolving:
                task.cancel()
            self._close()

    def now(self) -> float:
        """Return the time of the event loop's clock."""
        return asyncio.get_running_loop().time() if self._loop is None else self._loop.time()

    async def _bind_rows(self, loop: asyncio.AbstractEventLoop) -> list[AddressInfo]:
        if self._bind is None:
            return []
        try:
            return await _getaddrinfo(loop, self._bind, socket.AI_PASSIVE)
        except (OSError, UnicodeError) as error:
            raise ConfigError(
                f"cannot bind {self._bind[0]!r}: no such host name or address ({error})"
            ) from error

    def _run_callback(self, call: Callable[[], None]) -> None:
        """Run a callback of the event loop, unless `run` has ended; report its exceptions."""
        if self._loop is not None:
            self._contain(call)

    def _wake_flusher(self) -> None:
        if self._loop is not None and not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            self._loop.call_soon(self._run_callback, self._flush_soon)

    def _flush_soon(self) -> None:
        self._is_flush_scheduled = False
        self._run_soon()

    def _wake_by(self, deadline: float) -> None:
        if self._loop is not None and deadline < self._due:
            if self._timer is not None:
                self._timer.cancel()
            self._due = deadline
            self._timer = self._loop.call_at(deadline, self._run_callback, self._on_timer)

    def _on_timer(self) -> None:
        """Run the timers that are due, or set the timer again when the deadline has become
        later."""
        self._timer, self._due = None, inf
        deadline = self._next_deadline()
        now = self.now()
        if deadline is not None and deadline <= now:
            self._contain(self._tick)
            deadline = self._next_deadline()
        if deadline is not None:
            self._wake_by(max(deadline, now + _CLOCK_RESOLUTION))

    def _resolve(self, address: Address, then: Callable[[list[AddressInfo]], None]) -> None:
        assert self._loop is not None
        task = self._loop.create_task(self._resolve_and_call(self._loop, address, then))
        self._resolving.add(task)
        task.add_done_callback(self._resolving.discard)

    async def _resolve_and_call(
        self,
        loop: asyncio.AbstractEventLoop,
        address: Address,
        then: Callable[[list[AddressInfo]], None],
    ) -> None:
        try:
            rows = await _getaddrinfo(loop, address, 0)
        except (OSError, UnicodeError):
            rows = []
        self._run_callback(lambda: then(rows))


def _watchable(
    loop: asyncio.AbstractEventLoop, sock: socket.socket
) -> "socket.socket | select.epoll":
    """Return the object that the event loop must watch to detect that a socket is readable.

    uvloop stops watching a socket with a queued error such as "port unreachable", without notice
    (libuv, `uv__poll_io`). An epoll object around the socket never has such an error.
    """
    if isinstance(loop, asyncio.SelectorEventLoop) or not hasattr(select, "epoll"):
        return sock
    epoll = select.epoll()
    epoll.register(sock, select.EPOLLIN)
    return epoll


async def _getaddrinfo(
    loop: asyncio.AbstractEventLoop, address: Address, flags: int
) -> list[AddressInfo]:
    host, port = address
    return list(await loop.getaddrinfo(host, port, type=socket.SOCK_DGRAM, flags=flags))
