"""QUIC over a UDP socket under asyncio: what a client runs in asyncio applications.

No task waits for packets or for the clock: the loop calls us, which takes a fraction of the time.
Decides who is called when; all the rest is in `udp`.
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

_GRAIN = 0.001
"""Seconds that uvloop's clock counts in: what is due before, it would call again and again."""


class AsyncioUdp(UdpTransport):
    """A `Transport` for asyncio; nothing happens before `run`."""

    _loop: asyncio.AbstractEventLoop | None = None
    """While it runs."""
    _names: set[asyncio.Task[None]]
    """Tasks that look names up."""
    _timer: asyncio.TimerHandle | None = None
    _due: float = inf
    _is_called_soon: bool = False

    async def run(self, *, task_status: TaskStatus[Address] = anyio.TASK_STATUS_IGNORED) -> None:
        """Carry messages until cancelled, then close every connection.

        Calls `task_status.started(address)` once messages can leave. Raises `ConfigError` when it
        cannot bind its address.
        """
        loop = asyncio.get_running_loop()
        sock = self._open(await self._bind_rows(loop))
        self._loop, self._names = loop, set()
        watched = _watched(loop, sock)
        loop.add_reader(watched, self._guard, self._read)
        try:
            if self._soon:
                self._wake_flusher()
            task_status.started(self.address)
            await loop.create_future()  # Until cancelled.
        finally:
            loop.remove_reader(watched)
            if watched is not sock:
                watched.close()
            self._loop = None
            if self._timer is not None:
                self._timer.cancel()
            for task in self._names:
                task.cancel()
            self._close()

    def now(self) -> float:
        """The event loop's clock."""
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

    def _guard(self, call: Callable[[], None]) -> None:
        """Make a call of the loop, while this runs; an error in it ends nothing else."""
        if self._loop is not None:
            self._make(call)

    def _wake_flusher(self) -> None:
        if self._loop is not None and not self._is_called_soon:
            self._is_called_soon = True
            self._loop.call_soon(self._guard, self._flush_soon)

    def _flush_soon(self) -> None:
        self._is_called_soon = False
        self._run_soon()

    def _wait_no_longer_than(self, deadline: float) -> None:
        if self._loop is not None and deadline < self._due:
            if self._timer is not None:
                self._timer.cancel()
            self._due = deadline
            self._timer = self._loop.call_at(deadline, self._guard, self._ring)

    def _ring(self) -> None:
        """Do what is due. Mostly it has been put off since; then wait for that."""
        self._timer, self._due = None, inf
        deadline = self._next_deadline()
        if deadline is None:
            return
        now = self.now()
        if deadline <= now:
            self._tick()
        else:
            self._wait_no_longer_than(max(deadline, now + _GRAIN))

    def _look_up(self, address: Address, then: Callable[[list[AddressInfo]], None]) -> None:
        assert self._loop is not None
        task = self._loop.create_task(self._look_up_and_tell(self._loop, address, then))
        self._names.add(task)
        task.add_done_callback(self._names.discard)

    async def _look_up_and_tell(
        self,
        loop: asyncio.AbstractEventLoop,
        address: Address,
        then: Callable[[list[AddressInfo]], None],
    ) -> None:
        try:
            rows = await _getaddrinfo(loop, address, 0)
        except (OSError, UnicodeError):
            rows = []
        self._guard(lambda: then(rows))


def _watched(
    loop: asyncio.AbstractEventLoop, sock: socket.socket
) -> "socket.socket | select.epoll":
    """What a loop must watch to learn that a socket can be read.

    uvloop watches a socket no more, and says nothing, when an error such as "nobody listens there"
    waits in its queue (libuv, `uv__poll_io`). Around the socket, another epoll has none.
    """
    if isinstance(loop, asyncio.SelectorEventLoop) or not hasattr(select, "epoll"):
        return sock
    around = select.epoll()
    around.register(sock, select.EPOLLIN)
    return around


async def _getaddrinfo(
    loop: asyncio.AbstractEventLoop, address: Address, flags: int
) -> list[AddressInfo]:
    host, port = address
    return list(await loop.getaddrinfo(host, port, type=socket.SOCK_DGRAM, flags=flags))
