"""UDP transport under trio, which nodes use.

Four kinds of tasks wait: one for datagrams, one for timers, one for calls of `call_soon`, and one
for each host name to resolve. `udp_transport` does everything else.
"""

import socket
from collections.abc import Callable
from functools import partial
from math import inf

import trio
from trio.lowlevel import wait_readable

from ringfence.errors import ConfigError
from ringfence.runtime.wakeup import Wakeup
from ringfence.transport.interface import Address
from ringfence.transport.udp.udp_transport import AddressInfo, UdpTransport

__all__ = ["TrioUdp"]

_SMALL = 1000
"""Size of a datagram with a few checks or answers, in bytes: seldom does another one follow."""
_SOON = 0.002
"""Seconds before a wake-up from which a flush checks whether it is still needed. With each packet,
deadlines become later, and a wake-up costs as much as several packets."""
_MOVE_PAUSE = 0.005
"""Seconds after which a flush checks the same for a later wake-up: that costs less than a wake-up,
but more than a packet."""


class TrioUdp(UdpTransport):
    """Transport over UDP for trio; it does nothing before `run`."""

    _nursery: trio.Nursery | None = None
    _flusher: Wakeup | None = None
    _sleeper: Wakeup | None = None
    _clock_time = staticmethod(trio.current_time)
    """Function that reads trio's clock."""
    _next_check = 0.0
    """When a flush looks again whether the next wake-up is needed."""

    async def run(
        self, *, task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Send and receive datagrams until cancelled, then close every connection.

        Calls `task_status.started(address)` when peers can reach the transport. Raises
        `ConfigError` when it cannot listen.
        """
        sock = self._open(await self._bind_rows())
        self._ends_burst = _SMALL if self._has_stamps else 0
        # Without the steps of `trio.current_time`, because this is read several times per packet.
        self._clock_time = trio.lowlevel.current_clock().current_time
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._flush_when_asked)
                nursery.start_soon(self._run_timers)
                task_status.started(self.address)
                while True:
                    # Without a deadline: setting one costs as much as a packet.
                    await wait_readable(sock)
                    self._contain(self._read)
        finally:
            self._nursery = None
            self._close()

    def flush(self) -> None:
        """Send all queued messages, and let the timer task sleep longer if it would soon wake
        without need."""
        super().flush()
        sleeper, now = self._sleeper, self._flushed_at
        if sleeper is None or (planned := sleeper.deadline) == -inf:
            return
        if now < self._next_check and now + _SOON < planned:
            return
        self._next_check = now + _MOVE_PAUSE
        deadline = self._next_deadline(planned)
        if deadline is None or deadline > planned:
            sleeper.move_deadline(inf if deadline is None else deadline)

    def now(self) -> float:
        """Return the time of trio's clock, which may be virtual."""
        return self._clock_time()

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
        self._flusher = flusher = Wakeup()
        if self._soon:
            flusher.wake()
        while True:
            await flusher.wait()
            self._contain(self._run_soon)

    async def _run_timers(self) -> None:
        """Run the timers that are due. If a deadline becomes later, the task may wake once too
        early."""
        self._sleeper = sleeper = Wakeup()
        while True:
            now = self.now()
            deadline = self._next_deadline(now)
            if deadline is not None and deadline <= now:
                self._contain(self._tick)
                deadline = self._next_deadline()
            await sleeper.wait_until(inf if deadline is None else deadline)

    def _wake_flusher(self) -> None:
        if self._flusher is not None:
            self._flusher.wake()

    def _wake_by(self, deadline: float) -> None:
        if self._sleeper is not None and deadline < self._sleeper.deadline:
            self._sleeper.move_deadline(deadline)

    def _resolve(self, address: Address, then: Callable[[list[AddressInfo]], None]) -> None:
        assert self._nursery is not None
        self._nursery.start_soon(self._resolve_and_call, address, then)

    async def _resolve_and_call(
        self, address: Address, then: Callable[[list[AddressInfo]], None]
    ) -> None:
        try:
            rows = list(await _getaddrinfo(address, 0))
        except (OSError, UnicodeError):
            rows = []
        self._contain(partial(then, rows))


async def _getaddrinfo(address: Address, flags: int) -> list[AddressInfo]:
    return list(
        await trio.socket.getaddrinfo(address[0], address[1], type=socket.SOCK_DGRAM, flags=flags)
    )
