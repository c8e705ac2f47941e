"""UDP transport in a loop that the threads of the application run, which blocking clients use.

The loop waits for the socket and for the earliest timer. `udp_transport` does everything else.
"""

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from math import inf

from ringfence import runtime
from ringfence.runtime.caller_loop import CallerLoop, LoopLost
from ringfence.transport.interface import Address
from ringfence.transport.quic.endpoint import OnBug
from ringfence.transport.tls.certificates import ClientTls
from ringfence.transport.udp.udp_transport import AddressInfo, UdpTransport

__all__ = ["CallerLoopUdp"]


class CallerLoopUdp(UdpTransport):
    """Transport of a client over UDP for a `CallerLoop`; it does nothing before `run`."""

    now = staticmethod(time.monotonic)
    _ends_burst = 1000  # An answer to a few checks is smaller; no other answer is likely to follow.

    def __init__(self, loop: CallerLoop, *, on_bug: OnBug, client: ClientTls) -> None:
        def report(error: Exception) -> None:
            if not loop.on_caught(error):
                on_bug(error)

        super().__init__(on_bug=report, client=client)
        self._loop = loop
        self._is_flush_scheduled = False

    async def run(
        self, *, task_status: runtime.TaskStatus[Address] = runtime.TASK_STATUS_IGNORED
    ) -> None:
        """Send and receive datagrams until cancelled, then close every connection.

        Calls `task_status.started(address)` when messages can be sent.
        """
        self._open([])
        self._has_stamps = False  # Only nodes use the time that a datagram has waited.
        self._loop.watch(self)
        try:
            if self._soon:
                self._wake_flusher()
            task_status.started(self.address)
            await runtime.sleep(inf)
        finally:
            self._loop.watch(None)
            self._close()

    def fileno(self) -> int:
        """Return the file number of the socket."""
        assert self._socket is not None
        return self._socket.raw.fileno()

    def next_deadline(self) -> float | None:
        """Return when `tick` must be called; None when no timer is set."""
        return self._next_deadline()

    def receive(self) -> None:
        """Process received datagrams, and send the answers."""
        self._contain(self._read)

    def tick(self) -> None:
        """Process received datagrams, and run the timers that are due."""
        self._contain(self._tick)

    def abandon(self) -> None:
        """Close the socket of this process without sending anything."""
        sock, self._socket = self._socket, None
        if sock is not None:
            sock.close()

    def _wake_flusher(self) -> None:
        if not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            self._loop.gather(self._flush_soon)

    def _flush_soon(self) -> None:
        self._is_flush_scheduled = False
        if self._socket is not None:
            self._run_soon()

    def _wake_by(self, deadline: float) -> None:
        """Do nothing: the loop reads the next deadline before each wait."""

    def _resolve(self, address: Address, then: Callable[[list[AddressInfo]], None]) -> None:
        threading.Thread(
            target=self._resolve_and_call, args=(address, then), name="ringfence-dns", daemon=True
        ).start()

    def _resolve_and_call(
        self, address: Address, then: Callable[[list[AddressInfo]], None]
    ) -> None:
        rows: list[AddressInfo] = []
        with suppress(OSError, UnicodeError):
            rows = list(socket.getaddrinfo(address[0], address[1], type=socket.SOCK_DGRAM))
        with suppress(LoopLost):
            self._loop.call_from_thread(partial(self._contain, partial(then, rows)))
