"""QUIC over a UDP socket under anyio: what a client runs, in trio and in asyncio applications.

Decides who waits for what: one task reads, one watches the clock, one makes the calls of
`call_soon`, and a task for each host name is resolved. All the rest is in `udp`.
"""

import asyncio
import socket
from collections.abc import Callable
from math import inf

import anyio
import trio
from anyio.abc import TaskGroup, TaskStatus

from ringfence.errors import ConfigError
from ringfence.transport.interface import Address
from ringfence.transport.udp import AddressInfo, Udp

__all__ = ["AnyioUdp"]


class AnyioUdp(Udp):
    """A `Transport` for trio and asyncio; nothing happens before `run`."""

    _tasks: TaskGroup | None = None
    _asked: anyio.Event | None = None
    """What `call_soon` sets; a new one for each round of calls."""
    _sleeping: anyio.CancelScope | None = None
    _clock: Callable[[], float] = staticmethod(anyio.current_time)

    async def run(self, *, task_status: TaskStatus[Address] = anyio.TASK_STATUS_IGNORED) -> None:
        """Carry messages until cancelled, then close every connection.

        Calls `task_status.started(address)` once messages can leave. Raises `ConfigError` when it
        cannot bind its address.
        """
        self._clock = _clock_of_this_loop()
        sock = self._open(await self._bind_rows())
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                tasks.start_soon(self._flush_when_asked)
                tasks.start_soon(self._watch_clock)
                task_status.started(self.address)
                while True:
                    # Without a deadline of its own: each would cost as much as a packet.
                    await anyio.wait_readable(sock)
                    self._read()
        finally:
            self._tasks = None
            self._close()

    def now(self) -> float:
        """The event loop's clock."""
        return self._clock()

    async def _bind_rows(self) -> list[AddressInfo]:
        if self._bind is None:
            return []
        try:
            return await _getaddrinfo(self._bind, socket.AI_PASSIVE)
        except (OSError, UnicodeError) as error:
            raise ConfigError(
                f"cannot bind {self._bind[0]!r}: no such host name or address ({error})"
            ) from error

    async def _flush_when_asked(self) -> None:
        while True:
            self._asked = anyio.Event()
            if not self._soon:
                await self._asked.wait()
            else:
                await anyio.lowlevel.checkpoint()
            self._run_soon()

    async def _watch_clock(self) -> None:
        """Do what is due. Sleeps until what was the first deadline once: it is mostly put off."""
        while True:
            deadline = self._next_deadline()
            with anyio.CancelScope(deadline=inf if deadline is None else deadline) as scope:
                self._sleeping = scope
                await anyio.sleep_forever()
            self._tick()

    def _wake_flusher(self) -> None:
        if self._asked is not None:
            self._asked.set()

    def _wait_no_longer_than(self, deadline: float) -> None:
        if self._sleeping is not None and deadline < self._sleeping.deadline:
            self._sleeping.deadline = deadline

    def _look_up(self, address: Address, then: Callable[[list[AddressInfo]], None]) -> None:
        assert self._tasks is not None
        self._tasks.start_soon(self._look_up_and_tell, address, then)

    async def _look_up_and_tell(
        self, address: Address, then: Callable[[list[AddressInfo]], None]
    ) -> None:
        try:
            rows = await _getaddrinfo(address, 0)
        except (OSError, UnicodeError):
            rows = []
        then(rows)


def _clock_of_this_loop() -> Callable[[], float]:
    """What `anyio.current_time` reads, without finding out each time under which loop it runs."""
    if trio.lowlevel.in_trio_run():
        return trio.current_time
    return asyncio.get_running_loop().time


async def _getaddrinfo(address: Address, flags: int) -> list[AddressInfo]:
    return list(
        await anyio.getaddrinfo(address[0], address[1], type=socket.SOCK_DGRAM, flags=flags)
    )
