"""Transports in one process, over a simulated network whose faults the test controls.

It simulates delays, cuts and crashes. Messages of an open connection arrive in order, and none is
lost. A connection over a cut link receives nothing. The runtime supplies the clock, so tests with a
virtual clock need no real time. There are no packets and no certificates; `quic` has those.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from itertools import count
from math import inf
from random import Random
from typing import TypeAlias

from ringfence import runtime
from ringfence.errors import ConfigError, LocalProtocolError
from ringfence.transport.addresses import format_address
from ringfence.transport.close_reason import TransportCode
from ringfence.transport.interface import (
    Accept,
    Address,
    Connection,
    Handler,
    OnSealed,
    Timer,
    check_sealed,
)
from ringfence.transport.memory_connection import MemoryConnection
from ringfence.transport.quic.endpoint import OnBug
from ringfence.transport.settings import Settings
from ringfence.wire.errors import ErrorCode

__all__ = ["MemoryNetwork", "MemoryTransport"]

OpenTimedCalls: TypeAlias = Callable[[], AbstractAsyncContextManager[runtime.TimedCalls]]


class MemoryNetwork:
    """Simulated network of links between addresses. Equal seeds and equal calls give equal
    events."""

    def __init__(
        self,
        random: Random,
        *,
        delay: float = 0.0005,
        jitter: float = 0.0,
        loss: float = 0.0,
        repeats: float = 0.0,
        settings: Settings | None = None,
        clock: Callable[[], float] = runtime.current_time,
        open_timed_calls: OpenTimedCalls = runtime.open_timed_calls,
    ) -> None:
        """Set the defaults of all links: a message takes `delay` seconds, plus a random time up to
        `jitter`.

        Messages stay in order. `loss` and `repeats` are the shares of datagrams that are lost or
        arrive twice. They apply to links without their own share. `open_timed_calls` replaces the
        scheduler of deliveries and timers.
        """
        self.now = clock
        self.open_timed_calls = open_timed_calls
        self._loss = loss
        self._repeated = repeats
        self._random = random
        self._delay = delay
        self._jitter = jitter
        self.settings = settings or Settings()
        self._delays: dict[frozenset[Address], float] = {}
        self._losses: dict[frozenset[Address], float] = {}
        self._repeats: dict[frozenset[Address], float] = {}
        self._cuts: dict[tuple[Address, Address], dict[MemoryConnection, None]] = {}
        """Cut links (from, to), with the connections that wait for them."""
        self._running: dict[Address, MemoryTransport] = {}
        self._silent: set[Address] = set()
        """Addresses of crashed transports, which send no answer."""
        self._sides: dict[MemoryConnection, None] = {}
        self._numbers = count(1)

    def transport(
        self, address: Address, *, on_bug: OnBug, accept: Accept | None = None
    ) -> "MemoryTransport":
        """Create a transport at `address`; with `accept`, it is reachable while it runs."""
        return MemoryTransport(self, address, on_bug, accept)

    def set_delay(self, a: Address, b: Address, delay: float) -> None:
        """Set the delay in seconds of messages between two addresses."""
        self._delays[frozenset((a, b))] = delay

    def set_loss(self, a: Address, b: Address, share: float) -> None:
        """Set the share of datagrams between two addresses that are lost."""
        self._losses[frozenset((a, b))] = share

    def set_repeats(self, a: Address, b: Address, share: float) -> None:
        """Set the share of datagrams between two addresses that arrive twice."""
        self._repeats[frozenset((a, b))] = share

    def cut(self, a: Address, b: Address) -> None:
        """Cut a link: messages wait, and connections close after the idle timeout.

        Sealed datagrams are lost.
        """
        self.cut_one_way(a, b)
        self.cut_one_way(b, a)

    def cut_one_way(self, a: Address, b: Address) -> None:
        """Cut the link from `a` to `b` only; messages from `b` to `a` still arrive.

        QUIC needs acknowledgements. So no new connection can open, and both sides of existing
        connections close after the idle timeout.
        """
        if (a, b) not in self._cuts:
            self._cuts[a, b] = {}
            self._start_idle_timeouts(lambda side: side.link == frozenset((a, b)))

    def heal(self, a: Address, b: Address) -> None:
        """Undo `cut` and `cut_one_way`, and send the waiting messages."""
        for way in ((a, b), (b, a)):
            for side in self._cuts.pop(way, {}):
                side.send_queued()
        for side in self._sides:
            is_theirs = side.link == frozenset((a, b))
            if is_theirs and side.peer is not None and side.peer.transport.is_alive:
                side.cancel_idle_timeout()

    def reset(self, a: Address, b: Address) -> None:
        """Close the connections between two addresses, as a failing middlebox does.

        Both sides are notified at once, and messages in flight are lost.
        """
        for side in [side for side in self._sides if side.link == frozenset((a, b))]:
            side.abort(TransportCode.UNREACHABLE, "the connection was reset")

    def crash(self, address: Address) -> None:
        """Stop the transport at `address` without notice to peers; a new transport may use the
        address."""
        transport = self._running.pop(address, None)
        if transport is not None:
            transport.is_alive = False
            self._silent.add(address)
            for side in self.sides_of(transport):
                del self._sides[side]
            self._start_idle_timeouts(
                lambda side: side.peer is not None and side.peer.transport is transport
            )

    def pause(self, address: Address) -> None:
        """Pause the transport at `address`, as a suspended host does.

        Received messages, timers and messages to send wait."""
        transport = self._running.get(address)
        if transport is not None:
            transport.is_paused = True

    def resume(self, address: Address) -> None:
        """Undo `pause`: process everything that became due during the pause."""
        transport = self._running.get(address)
        if transport is not None and transport.is_paused:
            transport.is_paused = False
            transport.call_soon(transport.run_held_calls)

    def start(self, transport: "MemoryTransport") -> None:
        """Register a running transport. Raises `ConfigError` when its address is in use."""
        if transport.address in self._running:
            raise ConfigError(f"cannot listen on {format_address(transport.address)}: it is in use")
        self._running[transport.address] = transport
        self._silent.discard(transport.address)

    def stop(self, transport: "MemoryTransport") -> None:
        """Remove a transport that has closed its connections and stopped."""
        if self._running.get(transport.address) is transport:
            del self._running[transport.address]

    def new_binding(self) -> bytes:
        """Return a unique secret (channel binding) for a new connection."""
        return b"connection %d" % next(self._numbers)

    def deliver_open(self, side: MemoryConnection) -> None:
        """Deliver the first packet of a new connection."""
        target = self._running.get(side.address)
        there, back = (side.transport.address, side.address), (side.address, side.transport.address)
        is_silent = side.address in self._silent or there in self._cuts or back in self._cuts
        if side.is_closed:
            return
        if is_silent:
            side.open_again()
        elif target is None or target.accept is None:
            reason = f"no process listens at {format_address(side.address)}"
            side.deliver_later(partial(side.abort, TransportCode.UNREACHABLE, reason))
        else:
            target.call_at(self.now(), partial(target.accept_connection, side))

    def deliver_sealed(self, sender: "MemoryTransport", datagram: bytes, address: Address) -> None:
        """Deliver a datagram, unless the link is cut or loses it. Datagrams may be reordered."""
        link = frozenset((sender.address, address))
        target = self._running.get(address)
        if target is None or (sender.address, address) in self._cuts:
            return
        if self._random.random() < self._losses.get(link, self._loss):
            return
        twice = self._random.random() < self._repeats.get(link, self._repeated)
        for _ in range(1 + twice):
            # The receiver plans the call, so the datagram arrives even if the sender stops.
            land = partial(target.receive_sealed_datagram, datagram, sender.address)
            target.call_at(self.arrival(link, 0.0), land)

    def is_cut(self, side: MemoryConnection) -> bool:
        """Return whether the link that carries one side's messages is cut; `heal` then resumes
        sending."""
        waiting = self._cuts.get((side.transport.address, side.address))
        if waiting is not None:
            waiting[side] = None
        return waiting is not None

    def delay(self, link: frozenset[Address]) -> float:
        """Return the seconds that a message takes on an idle link."""
        return self._delays.get(link, self._delay)

    def arrival(self, link: frozenset[Address], not_before: float) -> float:
        """Return the arrival time of a message that is sent now, at least `not_before`."""
        delay = self.delay(link)
        if self._jitter:
            delay += self._jitter * self._random.random()
        return max(not_before, self.now() + delay)

    def queued_s(self, address: Address) -> float:
        """Return the seconds that the latest message waits in the queue of a busy host."""
        return 0.0

    def sides_of(self, transport: "MemoryTransport") -> list[MemoryConnection]:
        """Return one transport's side of each of its connections that are not closed."""
        return [side for side in self._sides if side.transport is transport]

    def add(self, side: MemoryConnection) -> None:
        """Register one side of a new connection."""
        self._sides[side] = None

    def remove(self, side: MemoryConnection) -> None:
        """Remove one side of a connection after it closed."""
        self._sides.pop(side, None)

    def _start_idle_timeouts(self, concerns: Callable[[MemoryConnection], bool]) -> None:
        for side in [side for side in self._sides if concerns(side)]:
            side.start_idle_timeout(self.settings.idle_timeout)


class MemoryTransport:
    """Transport over a `MemoryNetwork`; it does nothing before `run`."""

    def __init__(
        self, network: MemoryNetwork, address: Address, on_bug: OnBug, accept: Accept | None
    ) -> None:
        self.network = network
        self.now = network.now
        """Function that returns the time of the runtime's clock."""
        self.accept = accept
        self.is_alive = False
        """Whether the transport runs and has not crashed."""
        self.is_paused = False
        """Whether the transport is paused."""
        self._on_sealed: OnSealed | None = None
        self.held_up_ns = 0
        """Delay of the current call in ns; more than 0 after a pause."""
        self.address = address
        """Local address of this transport."""
        self._on_bug = on_bug
        self._calls: runtime.TimedCalls | None = None
        self._held: list[_Call] = []
        """Calls that were due during a pause."""
        self._unsent: dict[MemoryConnection, None] = {}

    @property
    def refusals(self) -> Mapping[str, int]:
        """Counts of rejected datagrams: always empty, because a simulated network has no invalid
        packets."""
        return {}

    async def run(
        self, *, task_status: runtime.TaskStatus[Address] = runtime.TASK_STATUS_IGNORED
    ) -> None:
        """Deliver messages until cancelled, then close every connection."""
        self.network.start(self)
        self.is_alive = True
        try:
            async with self.network.open_timed_calls() as self._calls:
                task_status.started(self.address)
                await runtime.sleep(inf)
        finally:
            if self.is_alive:
                for side in self.network.sides_of(self):
                    side.close(ErrorCode.DRAINING, "shutting down")
                self.flush()
                self.is_alive = False
            self.network.stop(self)

    def connect(self, address: Address, handler: Handler, node: str = "") -> Connection:
        """Start to connect; the first packet is sent at the next flush. There are no
        certificates."""
        if not self.is_alive:
            raise LocalProtocolError("the transport is not running")
        side = MemoryConnection(self, address, handler)
        settings = self.network.settings
        side.connect(settings.handshake_timeout, 2 * settings.initial_rtt)
        return side

    def receive_sealed(self, handler: OnSealed | None) -> None:
        """Pass each received sealed (encrypted) datagram to `handler`; with None, refuse such
        datagrams."""
        self._on_sealed = handler

    def send_sealed(self, datagram: bytes, address: Address) -> None:
        """Send one sealed datagram without a connection."""
        check_sealed(datagram)
        if self.is_alive and not self.is_paused:
            self.network.deliver_sealed(self, datagram, address)

    def flush(self) -> None:
        """Send all queued messages now."""
        if self.is_paused or not self._unsent:
            return
        unsent, self._unsent = self._unsent, {}
        for side in unsent:
            side.send_queued()

    def call_soon(self, call: Callable[[], None]) -> None:
        """Schedule `call` to run after the tasks that are ready now, followed by a flush."""
        if self._calls is not None:
            self._calls.call_soon(_Call(self, self.now(), call))

    def call_at(self, when: float, call: Callable[[], None]) -> Timer:
        """Schedule `call` for the instant `when` on the clock of `now`, followed by a flush."""
        assert self._calls is not None, "the transport is not running"
        planned = _Call(self, when, call)
        planned.timer = self._calls.call_at(when, planned)
        return planned

    def hold_call(self, call: "_Call") -> None:
        """Keep a scheduled call that is now due, until the paused host resumes."""
        self._held.append(call)

    def run_held_calls(self) -> None:
        """Make the scheduled calls that became due during a pause, and send waiting messages."""
        if not self.is_paused:
            held, self._held = self._held, []
            for call in held:
                call()
            self.flush()

    def accept_connection(self, incoming: MemoryConnection) -> None:
        """Accept or refuse an incoming connection."""
        side = MemoryConnection(self, incoming.transport.address, None)
        side.peer, incoming.peer = incoming, side
        side.binding = incoming.binding = self.network.new_binding()
        side.open()
        incoming.deliver_later(incoming.open)

    def receive_sealed_datagram(self, datagram: bytes, source: Address) -> None:
        """Pass a received sealed datagram to the handler."""
        if self._on_sealed is not None:
            self._on_sealed(datagram, source)

    def mark_unsent(self, side: MemoryConnection) -> None:
        """Record that a connection has messages to send at the next flush."""
        self._unsent[side] = None

    def run_call(self, call: Callable[[], None]) -> None:
        """Make a scheduled call, then flush, unless the transport has crashed."""
        if self.is_alive:
            try:
                call()
            except Exception as error:  # noqa: BLE001 - one caller's bug must not stop the others.
                self.report(error)
            if self._unsent:
                self.flush()

    def report(self, error: Exception) -> None:
        """Pass an unexpected exception to the callback for internal errors."""
        self._on_bug(error)


class _Call:
    """Call that a simulated transport has scheduled for an instant."""

    __slots__ = ("_call", "_transport", "_when", "timer")

    def __init__(self, transport: MemoryTransport, when: float, call: Callable[[], None]) -> None:
        self._transport = transport
        self._when = when
        self._call: Callable[[], None] | None = call
        self.timer: Timer | None = None
        """Timer of the runtime, which cancels the call."""

    def cancel(self) -> None:
        """Cancel the scheduled call."""
        self._call = None
        if self.timer is not None:
            self.timer.cancel()

    def __call__(self) -> None:
        transport = self._transport
        if transport.is_paused:
            transport.hold_call(self)
        elif self._call is not None:
            late_s = transport.network.now() - self._when
            transport.held_up_ns = round(late_s * 1e9) if late_s else 0
            transport.run_call(self._call)
