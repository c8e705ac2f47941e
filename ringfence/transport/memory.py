"""Transports in one process, over a network whose faults the test decides.

Decides delays, cuts and crashes as a connection sees them: messages in order and none lost while it
lives, silence when the other side cannot be heard. Time is the runtime's, so a virtual clock
makes it instant. There are no packets and no certificates inside: `endpoint` has those.
"""

from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from math import inf
from random import Random

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


class MemoryNetwork:
    """The links between addresses. One seed and one order of calls give one history."""

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
    ) -> None:
        """A message takes `delay` seconds, and by chance up to `jitter` more; none overtakes.

        `loss` and `repeats` are the shares of datagrams that are lost or arrive twice, on links
        without a share of their own.
        """
        self.now = clock
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
        """Ways, from and to, that carry nothing, with the ends that wait for them."""
        self._running: dict[Address, MemoryTransport] = {}
        self._silent: set[Address] = set()
        """Addresses of crashed transports: whoever asks there hears nothing."""
        self._ends: dict[MemoryConnection, None] = {}
        self._numbers = count(1)

    def transport(
        self, address: Address, *, on_bug: OnBug, accept: Accept | None = None
    ) -> "MemoryTransport":
        """Make a transport at `address`; it can be reached once it runs, with an `accept`."""
        return MemoryTransport(self, address, on_bug, accept)

    def set_delay(self, a: Address, b: Address, delay: float) -> None:
        """From now on, messages between the two take `delay` seconds."""
        self._delays[frozenset((a, b))] = delay

    def set_loss(self, a: Address, b: Address, share: float) -> None:
        """From now on, this share of the sealed datagrams between the two is lost."""
        self._losses[frozenset((a, b))] = share

    def set_repeats(self, a: Address, b: Address, share: float) -> None:
        """From now on, this share of the sealed datagrams between the two comes twice."""
        self._repeats[frozenset((a, b))] = share

    def cut(self, a: Address, b: Address) -> None:
        """Carry nothing between the two; messages wait, and after the idle timeout it is over.

        Sealed datagrams do not wait: they are lost.
        """
        self.cut_one_way(a, b)
        self.cut_one_way(b, a)

    def cut_one_way(self, a: Address, b: Address) -> None:
        """Carry nothing from `a` to `b`, as `cut`; what `b` sends still arrives.

        Since QUIC does not live without acknowledgements, no new connection comes about, and both
        sides of the old ones end by the idle timeout.
        """
        if (a, b) not in self._cuts:
            self._cuts[a, b] = {}
            self._grow_silent(lambda end: end.link == frozenset((a, b)))

    def heal(self, a: Address, b: Address) -> None:
        """Undo `cut` and `cut_one_way`: what waited goes on its way."""
        for way in ((a, b), (b, a)):
            for end in self._cuts.pop(way, {}):
                end.depart()
        for end in self._ends:
            is_theirs = end.link == frozenset((a, b))
            if is_theirs and end.peer is not None and end.peer.home.is_alive:
                end.hear_again()

    def reset(self, a: Address, b: Address) -> None:
        """Break the connections between the two, as when something on the way forgets them.

        Both sides learn of it at once, and what was under way is lost.
        """
        for end in [end for end in self._ends if end.link == frozenset((a, b))]:
            end.lose(TransportCode.UNREACHABLE, "the connection was reset")

    def crash(self, address: Address) -> None:
        """Stop the transport at `address` without a word; a new one may take its place."""
        transport = self._running.pop(address, None)
        if transport is not None:
            transport.is_alive = False
            self._silent.add(address)
            for end in self.ends_of(transport):
                del self._ends[end]
            self._grow_silent(lambda end: end.peer is not None and end.peer.home is transport)

    def pause(self, address: Address) -> None:
        """Halt the transport at `address`, as when its host stands still: what comes waits, timers
        too, and what it should send."""
        transport = self._running.get(address)
        if transport is not None:
            transport.is_paused = True

    def resume(self, address: Address) -> None:
        """Undo `pause`: everything that is due happens now."""
        transport = self._running.get(address)
        if transport is not None and transport.is_paused:
            transport.is_paused = False
            transport.call_soon(transport.go_on)

    def start(self, transport: "MemoryTransport") -> None:
        """Take note that `transport` runs. Raises `ConfigError` when its address is taken."""
        if transport.address in self._running:
            raise ConfigError(f"cannot listen on {format_address(transport.address)}: it is in use")
        self._running[transport.address] = transport
        self._silent.discard(transport.address)

    def stop(self, transport: "MemoryTransport") -> None:
        """Take note that `transport` has closed its connections and runs no more."""
        if self._running.get(transport.address) is transport:
            del self._running[transport.address]

    def next_binding(self) -> bytes:
        """Return the binding of a new connection, different from all others."""
        return b"connection %d" % next(self._numbers)

    def knock(self, end: MemoryConnection) -> None:
        """Carry a new connection's first packet to where it is meant for."""
        target = self._running.get(end.address)
        there, back = (end.home.address, end.address), (end.address, end.home.address)
        is_silent = end.address in self._silent or there in self._cuts or back in self._cuts
        if end.is_closed or is_silent:
            return  # The handshake timeout will tell.
        if target is None or target.accept is None:
            reason = f"no process listens at {format_address(end.address)}"
            end.later(partial(end.lose, TransportCode.UNREACHABLE, reason))
        else:
            target.call_at(self.now(), partial(target.take, end))

    def carry(self, sender: "MemoryTransport", datagram: bytes, address: Address) -> None:
        """Carry a sealed datagram, if the link does; it may overtake others."""
        link = frozenset((sender.address, address))
        target = self._running.get(address)
        if target is None or (sender.address, address) in self._cuts:
            return
        if self._random.random() < self._losses.get(link, self._loss):
            return
        twice = self._random.random() < self._repeats.get(link, self._repeated)
        for _ in range(1 + twice):
            # Planned by the receiver: what has left arrives, whatever becomes of the sender.
            land = partial(target.take_sealed, datagram, sender.address)
            target.call_at(self.arrival(link, 0.0), land)

    def is_cut(self, end: MemoryConnection) -> bool:
        """Whether the way of `end` is cut; if so, it goes on when that heals."""
        waiting = self._cuts.get((end.home.address, end.address))
        if waiting is not None:
            waiting[end] = None
        return waiting is not None

    def delay(self, link: frozenset[Address]) -> float:
        """Return the seconds that a message takes on an idle link."""
        return self._delays.get(link, self._delay)

    def arrival(self, link: frozenset[Address], not_before: float) -> float:
        """When what leaves now arrives, at the earliest at `not_before`."""
        delay = self.delay(link)
        if self._jitter:
            delay += self._random.uniform(0.0, self._jitter)
        return max(not_before, self.now() + delay)

    def queued_s(self, address: Address) -> float:
        """Seconds that the latest arrival waits in the queue of a busy host."""
        return 0.0

    def ends_of(self, transport: "MemoryTransport") -> list[MemoryConnection]:
        """List its sides of all connections that are not closed."""
        return [end for end in self._ends if end.home is transport]

    def add(self, end: MemoryConnection) -> None:
        """Take note of one end of a connection."""
        self._ends[end] = None

    def remove(self, end: MemoryConnection) -> None:
        """Take note that this end is closed."""
        self._ends.pop(end, None)

    def _grow_silent(self, concerns: Callable[[MemoryConnection], bool]) -> None:
        for end in [end for end in self._ends if concerns(end)]:
            end.grow_silent(self.settings.idle_timeout)


class MemoryTransport:
    """A `Transport` of a `MemoryNetwork`; nothing happens before `run`."""

    def __init__(
        self, network: MemoryNetwork, address: Address, on_bug: OnBug, accept: Accept | None
    ) -> None:
        self.network = network
        self.accept = accept
        self.is_alive = False
        """Whether it runs and has not crashed."""
        self.is_paused = False
        """Whether its host stands still."""
        self._on_sealed: OnSealed | None = None
        self.held_up_ns = 0
        """Delay of the present call, in ns: more than 0 after a pause."""
        self._address = address
        self._on_bug = on_bug
        self._calls: runtime.TimedCalls | None = None
        self._held: list[_Call] = []
        """Calls that were due while the host stood still."""
        self._unsent: dict[MemoryConnection, None] = {}

    @property
    def address(self) -> Address:
        """The address it was made for."""
        return self._address

    @property
    def refusals(self) -> Mapping[str, int]:
        """None: there are no packets that could be wrong."""
        return {}

    async def run(
        self, *, task_status: runtime.TaskStatus[Address] = runtime.TASK_STATUS_IGNORED
    ) -> None:
        """Carry messages until cancelled, then close every connection."""
        self.network.start(self)
        self.is_alive = True
        try:
            async with runtime.open_timed_calls() as self._calls:
                task_status.started(self._address)
                await runtime.sleep(inf)
        finally:
            if self.is_alive:
                for end in self.network.ends_of(self):
                    end.close(ErrorCode.DRAINING, "shutting down")
                self.flush()
                self.is_alive = False
            self.network.stop(self)

    def now(self) -> float:
        """The runtime's clock."""
        return self.network.now()

    def connect(self, address: Address, handler: Handler, node: str = "") -> Connection:
        """Begin a connection; its first packet leaves at the next flush. No certificates here."""
        if not self.is_alive:
            raise LocalProtocolError("the transport is not running")
        end = MemoryConnection(self, address, handler)
        end.knock(self.network.settings.handshake_timeout)
        return end

    def receive_sealed(self, handler: OnSealed | None) -> None:
        """See `Transport`."""
        self._on_sealed = handler

    def send_sealed(self, datagram: bytes, address: Address) -> None:
        """See `Transport`."""
        check_sealed(datagram)
        if self.is_alive and not self.is_paused:
            self.network.carry(self, datagram, address)

    def flush(self) -> None:
        """Send now what handlers and callers have queued."""
        if self.is_paused:
            return
        unsent, self._unsent = self._unsent, {}
        for end in unsent:
            end.depart()

    def call_soon(self, call: Callable[[], None]) -> None:
        """Make `call` once all tasks that are ready now have run; then flush."""
        if self._calls is not None:
            self._calls.call_soon(_Call(self, self.now(), call))

    def call_at(self, when: float, call: Callable[[], None]) -> Timer:
        """Make `call` at `when` on the clock of `now`; then flush."""
        assert self._calls is not None, "the transport is not running"
        planned = _Call(self, when, call)
        planned.timer = self._calls.call_at(when, planned)
        return planned

    def hold(self, call: "_Call") -> None:
        """Keep a call that is due until the host goes on."""
        self._held.append(call)

    def go_on(self) -> None:
        """Make the calls that were due while the host stood still, and send what waits."""
        if not self.is_paused:
            held, self._held = self._held, []
            for call in held:
                call()
            self.flush()

    def take(self, visitor: MemoryConnection) -> None:
        """Answer a connection that arrives."""
        end = MemoryConnection(self, visitor.home.address, None)
        end.peer, visitor.peer = visitor, end
        end.binding = visitor.binding = self.network.next_binding()
        end.open()
        visitor.later(visitor.open)

    def take_sealed(self, datagram: bytes, source: Address) -> None:
        """Hand on a sealed datagram that arrives."""
        if self._on_sealed is not None:
            self._on_sealed(datagram, source)

    def will_send(self, end: MemoryConnection) -> None:
        """Take note that `end` has something for the next flush."""
        self._unsent[end] = None

    def make(self, call: Callable[[], None]) -> None:
        """Make a call, unless crashed, and send what it leaves behind."""
        if self.is_alive:
            try:
                call()
            except Exception as error:  # noqa: BLE001 - one caller's bug must not stop the others.
                self.report(error)
            self.flush()

    def report(self, error: Exception) -> None:
        """Tell of an exception that should not have been raised."""
        self._on_bug(error)


class _Call:
    """Timed call of one transport."""

    __slots__ = ("_call", "_transport", "_when", "timer")

    def __init__(self, transport: MemoryTransport, when: float, call: Callable[[], None]) -> None:
        self._transport = transport
        self._when = when
        self._call: Callable[[], None] | None = call
        self.timer: Timer | None = None
        """What cancels it in the runtime."""

    def cancel(self) -> None:
        """Do not make the call."""
        self._call = None
        if self.timer is not None:
            self.timer.cancel()

    def __call__(self) -> None:
        transport = self._transport
        if transport.is_paused:
            transport.hold(self)
        elif self._call is not None:
            transport.held_up_ns = round((transport.now() - self._when) * 1e9)
            transport.make(self._call)
