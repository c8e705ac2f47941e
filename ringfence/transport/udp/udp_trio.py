"""QUIC over a UDP socket under trio: what a node runs.

Decides who waits for what: one task reads, one watches the clock, one makes the calls of
`call_soon`, and a task for each host name is resolved. All the rest is in `udp`.
"""

import socket
from collections.abc import Callable
from functools import partial
from math import inf

import trio
from trio.lowlevel import wait_readable

from ringfence.errors import ConfigError
from ringfence.transport.interface import Address
from ringfence.transport.udp.udp_transport import AddressInfo, UdpTransport
from ringfence.transport.wakeup import Wakeup

__all__ = ["TrioUdp"]


class TrioUdp(UdpTransport):
    """A `Transport` for trio; nothing happens before `run`."""

    _nursery: trio.Nursery | None = None
    _sleeping: trio.CancelScope | None = None
    _asked: Wakeup | None = None

    async def run(
        self, *, task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Carry messages until cancelled, then close every connection.

        Calls `task_status.started(address)` once peers can reach it. Raises `ConfigError` when it
        cannot listen.
        """
        sock = self._open(await self._bind_rows())
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._flush_when_asked)
                nursery.start_soon(self._watch_clock)
                task_status.started(self.address)
                while True:
                    # Without a deadline of its own: each would cost as much as a packet.
                    await wait_readable(sock)
                    self._make(self._read)
        finally:
            self._nursery = None
            self._close()

    def now(self) -> float:
        """trio's clock, so that virtual time works too."""
        return trio.current_time()

    async def _bind_rows(self) -> list[AddressInfo]:
        if self._bind is None:
            return []
        try:
            return list(await _getaddrinfo(self._bind, socket.AI_PASSIVE))
        except (OSError, UnicodeError) as error:
            raise ConfigError(
                f"cannot listen on {self._bind[0]!r}: no such host name or address ({error})"
            ) from error

    async def _flush_when_asked(self) -> None:
        self._asked = waker = Wakeup()
        if self._soon:
            waker.wake()
        while True:
            await waker.wait()
            self._make(self._run_soon)

    async def _watch_clock(self) -> None:
        """Do what is due. Sleeps until what was the first deadline once: it is mostly put off."""
        while True:
            deadline = self._next_deadline()
            with trio.CancelScope(deadline=inf if deadline is None else deadline) as scope:
                self._sleeping = scope
                await trio.sleep_forever()
            self._make(self._tick)

    def _wake_flusher(self) -> None:
        if self._asked is not None:
            self._asked.wake()

    def _wait_no_longer_than(self, deadline: float) -> None:
        if self._sleeping is not None and deadline < self._sleeping.deadline:
            self._sleeping.deadline = deadline

    def _look_up(self, address: Address, then: Callable[[list[AddressInfo]], None]) -> None:
        assert self._nursery is not None
        self._nursery.start_soon(self._look_up_and_tell, address, then)

    async def _look_up_and_tell(
        self, address: Address, then: Callable[[list[AddressInfo]], None]
    ) -> None:
        try:
            rows = list(await _getaddrinfo(address, 0))
        except (OSError, UnicodeError):
            rows = []
        self._make(partial(then, rows))


async def _getaddrinfo(address: Address, flags: int) -> list[AddressInfo]:
    return list(
        await trio.socket.getaddrinfo(address[0], address[1], type=socket.SOCK_DGRAM, flags=flags)
    )
