"""Transports in one process, over a network whose faults the test decides.

Decides delays, cuts and crashes as a connection sees them: messages in order and none lost while it
lives, silence when the other side cannot be heard. Time is trio's, so a virtual clock makes it
instant. There are no packets and no certificates inside: `endpoint` has those.
"""

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from math import inf
from random import Random

import trio

from ringfence.errors import ConfigError, LocalProtocolError
from ringfence.transport.closing import TransportCode, text_of
from ringfence.transport.endpoint import OnBug
from ringfence.transport.interface import Accept, Address, Connection, Handler, Timer
from ringfence.transport.settings import Settings
from ringfence.transport.timers import Timers
from ringfence.transport.waker import Waker
from ringfence.wire.errors import ErrorCode
from ringfence.wire.framing import frame

__all__ = ["MemoryNetwork", "MemoryTransport"]


class MemoryNetwork:
    """The links between addresses. One seed and one order of calls give one history."""

    def __init__(
        self,
        random: Random,
        *,
        delay: float = 0.0005,
        jitter: float = 0.0,
        settings: Settings | None = None,
    ) -> None:
        """A message takes `delay` seconds, and by chance up to `jitter` more; none overtakes."""
        self._random = random
        self._delay = delay
        self._jitter = jitter
        self.settings = settings or Settings()
        self._delays: dict[frozenset[Address], float] = {}
        self._cuts: dict[frozenset[Address], dict[_End, None]] = {}
        """Links that carry nothing, with the ends that wait for them."""
        self._running: dict[Address, MemoryTransport] = {}
        self._silent: set[Address] = set()
        """Addresses of crashed transports: whoever asks there hears nothing."""
        self._ends: dict[_End, None] = {}

    def transport(
        self, address: Address, *, on_bug: OnBug, accept: Accept | None = None
    ) -> "MemoryTransport":
        """Make a transport at `address`; it can be reached once it runs, with an `accept`."""
        return MemoryTransport(self, address, on_bug, accept)

    def set_delay(self, a: Address, b: Address, delay: float) -> None:
        """From now on, messages between the two take `delay` seconds."""
        self._delays[frozenset((a, b))] = delay

    def cut(self, a: Address, b: Address) -> None:
        """Carry nothing between the two; messages wait, and after the idle timeout it is over."""
        link = frozenset((a, b))
        if link not in self._cuts:
            self._cuts[link] = {}
            self._grow_silent(lambda end: end.link == link)

    def heal(self, a: Address, b: Address) -> None:
        """Undo `cut`: what waited goes on its way."""
        link = frozenset((a, b))
        for end in self._cuts.pop(link, {}):
            end.depart()
        for end in self._ends:
            if end.link == link and end.peer is not None and end.peer.home.is_alive:
                end.hear_again()

    def crash(self, address: Address) -> None:
        """Stop the transport at `address` without a word; a new one may take its place."""
        transport = self._running.pop(address, None)
        if transport is not None:
            transport.is_alive = False
            self._silent.add(address)
            for end in self.ends_of(transport):
                del self._ends[end]
            self._grow_silent(lambda end: end.peer is not None and end.peer.home is transport)

    def start(self, transport: "MemoryTransport") -> None:
        """Take note that `transport` runs. Raises `ConfigError` when its address is taken."""
        if transport.address in self._running:
            raise ConfigError(f"cannot listen on {text_of(transport.address)}: it is in use")
        self._running[transport.address] = transport
        self._silent.discard(transport.address)

    def stop(self, transport: "MemoryTransport") -> None:
        """Take note that `transport` has closed its connections and runs no more."""
        if self._running.get(transport.address) is transport:
            del self._running[transport.address]

    def knock(self, end: "_End") -> None:
        """Carry a new connection's first packet to where it is meant for."""
        target = self._running.get(end.address)
        if end.is_closed or end.address in self._silent or end.link in self._cuts:
            return  # The handshake timeout will tell.
        if target is None or target.accept is None:
            reason = f"nobody listens at {text_of(end.address)}"
            end.later(partial(end.lose, TransportCode.UNREACHABLE, reason))
        else:
            target.call_at(trio.current_time(), partial(target.take, end))

    def is_cut(self, end: "_End") -> bool:
        """Whether the link is cut; if so, `end` goes on when it heals."""
        waiting = self._cuts.get(end.link)
        if waiting is not None:
            waiting[end] = None
        return waiting is not None

    def arrival(self, link: frozenset[Address], not_before: float) -> float:
        """When what leaves now arrives, at the earliest at `not_before`."""
        delay = self._delays.get(link, self._delay)
        if self._jitter:
            delay += self._random.uniform(0.0, self._jitter)
        return max(not_before, trio.current_time() + delay)

    def ends_of(self, transport: "MemoryTransport") -> list["_End"]:
        """List its sides of all connections that are not closed."""
        return [end for end in self._ends if end.home is transport]

    def add(self, end: "_End") -> None:
        """Take note of one end of a connection."""
        self._ends[end] = None

    def remove(self, end: "_End") -> None:
        """Take note that this end is closed."""
        self._ends.pop(end, None)

    def _grow_silent(self, concerns: Callable[["_End"], bool]) -> None:
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
        self._address = address
        self._on_bug = on_bug
        self._timers = Timers()
        self._soon: list[Callable[[], None]] = []
        self._waker = Waker()
        self._sleeping: trio.CancelScope | None = None
        self._unsent: dict[_End, None] = {}

    @property
    def address(self) -> Address:
        """The address it was made for."""
        return self._address

    @property
    def refusals(self) -> Mapping[str, int]:
        """None: there are no packets that could be wrong."""
        return {}

    async def run(
        self, *, task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Carry messages until cancelled, then close every connection."""
        self.network.start(self)
        self.is_alive = True
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._flush_when_asked)
                task_status.started(self._address)
                while True:
                    deadline = self._timers.next_deadline()
                    with trio.CancelScope(deadline=inf if deadline is None else deadline) as scope:
                        self._sleeping = scope
                        await trio.sleep_forever()
                    for planned in self._timers.take_due(self.now()):
                        if planned.call is not None:
                            self.make(planned.call)
        finally:
            if self.is_alive:
                for end in self.network.ends_of(self):
                    end.close(ErrorCode.DRAINING, "shutting down")
                self.flush()
                self.is_alive = False
            self.network.stop(self)

    def now(self) -> float:
        """trio's clock."""
        return trio.current_time()

    def connect(self, address: Address, handler: Handler) -> Connection:
        """Begin a connection; its first packet leaves at the next flush."""
        if not self.is_alive:
            raise LocalProtocolError("the transport is not running")
        end = _End(self, address, handler)
        end.knock(self.network.settings.handshake_timeout)
        return end

    def flush(self) -> None:
        """Send now what handlers and callers have queued."""
        unsent, self._unsent = self._unsent, {}
        for end in unsent:
            end.depart()

    def call_soon(self, call: Callable[[], None]) -> None:
        """Make `call` once all tasks that are ready now have run; then flush."""
        self._soon.append(call)
        self._waker.wake()

    def call_at(self, when: float, call: Callable[[], None]) -> Timer:
        """Make `call` at `when` on the clock of `now`; then flush."""
        timer = self._timers.plan(when, call)
        if self._sleeping is not None and when < self._sleeping.deadline:
            self._sleeping.deadline = when
        return timer

    def take(self, visitor: "_End") -> None:
        """Answer a connection that arrives."""
        end = _End(self, visitor.home.address, None)
        end.peer, visitor.peer = visitor, end
        end.open()
        visitor.later(visitor.open)

    def will_send(self, end: "_End") -> None:
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

    async def _flush_when_asked(self) -> None:
        while True:
            await self._waker.wait()
            calls, self._soon = self._soon, []
            for call in calls:
                self.make(call)
            self.flush()


class _End:
    """One side of a connection, as its owner holds it."""

    def __init__(self, home: MemoryTransport, address: Address, handler: Handler | None) -> None:
        self.home = home
        self.peer: _End | None = None
        self.link = frozenset((home.address, address))
        self._address = address
        self._handler = handler
        self._is_open = False
        self.is_closed = False
        """Whether either side has ended it, or silence has."""
        self._queue: deque[bytes] = deque()
        self._goodbye: tuple[int, str] | None = None
        self._unsent = 0
        self._last_arrival = 0.0
        self._patience: Timer | None = None
        home.network.add(self)

    @property
    def address(self) -> Address:
        """Where the peer is."""
        return self._address

    @property
    def is_open(self) -> bool:
        """Whether the handshake is done and nobody has closed."""
        return self._is_open

    @property
    def unsent(self) -> int:
        """Bytes that have not arrived."""
        return 0 if self.is_closed else self._unsent

    def send(self, payload: bytes) -> None:
        """Queue one message; dropped when the connection is closed."""
        size = len(frame(payload))
        if not self.is_closed:
            self._queue.append(payload)
            self._unsent += size
            self.home.will_send(self)

    def close(self, code: int = 0, reason: str = "") -> None:
        """Close once what was sent before has left; the handler hears nothing more."""
        if not self.is_closed:
            self._handler = None
            self._shut()
            self._goodbye = code, reason
            self.home.will_send(self)

    def knock(self, timeout: float) -> None:
        """Ask the peer for a connection."""
        reason = f"handshake timed out (no answer from {text_of(self._address)})"
        self._wait(timeout, TransportCode.HANDSHAKE_TIMEOUT, reason)
        self.home.call_at(
            self.home.network.arrival(self.link, 0.0), partial(self.home.network.knock, self)
        )

    def open(self) -> None:
        """The peer has answered, or this is the answer."""
        if self.is_closed:
            return
        self._is_open = True
        if self._patience is not None:
            self._patience.cancel()
        if self._handler is None:
            assert self.home.accept is not None
            self._guard(self._accept)
        self._tell(lambda handler: handler.on_open(self))
        self.home.will_send(self)

    def later(self, call: Callable[[], None]) -> None:
        """Make `call` at this side, after the time a message takes."""
        self._last_arrival = self.home.network.arrival(self.link, self._last_arrival)
        self.home.call_at(self._last_arrival, call)

    def depart(self) -> None:
        """Send what is queued, if the link carries it; else it waits for the link."""
        peer = self.peer
        if peer is None or not (self._is_open or self._goodbye) or self.home.network.is_cut(self):
            return
        while self._queue:
            payload = self._queue.popleft()
            peer.later(partial(self._arrive, peer, payload))
        if self._goodbye is not None:
            peer.later(partial(peer.lose, *self._goodbye))
            self._goodbye = None

    def lose(self, code: int, reason: str) -> None:
        """The connection is over, not by this side's wish."""
        if self.is_closed:
            return
        self._shut()
        handler, self._handler = self._handler, None
        if handler is not None:
            self._guard(lambda: handler.on_close(code, reason))

    def grow_silent(self, timeout: float) -> None:
        """Nothing comes from the peer any more; give up after `timeout`, unless it does again."""
        if self._is_open:
            reason = f"idle timeout: {text_of(self._address)} went silent"
            self._wait(timeout, ErrorCode.IDLE, reason)

    def hear_again(self) -> None:
        """Undo `grow_silent`."""
        if self._is_open and self._patience is not None:
            self._patience.cancel()

    def _arrive(self, peer: "_End", payload: bytes) -> None:
        self._unsent -= len(frame(payload))
        peer._tell(lambda handler: handler.on_message(payload))

    def _wait(self, timeout: float, code: int, reason: str) -> None:
        self._patience = self.home.call_at(
            self.home.now() + timeout, partial(self.lose, code, reason)
        )

    def _accept(self) -> None:
        assert self.home.accept is not None
        self._handler = self.home.accept(self)

    def _tell(self, call: Callable[[Handler], None]) -> None:
        handler = self._handler
        if handler is not None and self._is_open:
            self._guard(lambda: call(handler))

    def _guard(self, call: Callable[[], None]) -> None:
        """A bug in a handler ends its connection and no other."""
        try:
            call()
        except Exception as error:  # noqa: BLE001
            self.home.report(error)
            handler = self._handler
            self.close(ErrorCode.INTERNAL, "internal error")
            if handler is not None:
                handler.on_close(ErrorCode.INTERNAL, "internal error")

    def _shut(self) -> None:
        self._is_open = False
        self.is_closed = True
        if self._patience is not None:
            self._patience.cancel()
        self.home.network.remove(self)
