"""Transport and links without a network, for a gossip driver and its users."""

from collections.abc import Callable

from gossip import Message, Record, Status
from gossip.datagrams.seal import Seal
from node.membership.gossip_driver import SealedDatagrams
from ringfence.transport.interface import Address
from ringfence.wire import Exchange

KEY = b"k" * 32
NS = 1_000_000_000
BOOT = 100.0
"""Time of the transport at which the uptime is 0."""
ME = Record("me", "host-me", 1, "dc1", "", 1.0, 1, 0, Status.ALIVE)


class FakeTimer:
    def __init__(self, at: float, call: Callable[[], None]) -> None:
        self.at, self.call = at, call
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class FakeClock:
    def read(self, now: int) -> int:
        return now

    def sample(self, name: str, offset_ns: int, rtt_ns: int, now: int) -> None:
        pass


class FakeTransport:
    """Transport that keeps timers and decoded datagrams; the test advances its time."""

    def __init__(self) -> None:
        self.seconds = BOOT
        self.timers: list[FakeTimer] = []
        self.sent: list[tuple[Message, Address]] = []
        self.send_errors: list[Exception] = []
        """Errors of the next attempts to send."""
        self.handler: Callable[[bytes, Address], None] | None = None
        self._reader = SealedDatagrams(Seal([KEY], "c", 3))

    def uptime(self) -> int:
        return round((self.seconds - BOOT) * NS)

    def now(self) -> float:
        return self.seconds

    def call_at(self, at: float, call: Callable[[], None]) -> FakeTimer:
        self.timers.append(FakeTimer(at, call))
        return self.timers[-1]

    def receive_sealed(self, handler: Callable[[bytes, Address], None]) -> None:
        self.handler = handler

    def send_sealed(self, datagram: bytes, address: Address) -> None:
        if self.send_errors:
            raise self.send_errors.pop()
        self.sent.append((self._reader.unpack(datagram), address))

    @property
    def next_timer(self) -> FakeTimer:
        """The only timer that is set."""
        [timer] = [timer for timer in self.timers if not timer.is_cancelled]
        return timer

    def run_timer(self) -> None:
        timer = self.next_timer
        self.timers.clear()
        self.seconds = timer.at
        timer.call()


class FakeLink:
    """Link that keeps each call and its function for the reply."""

    def __init__(self) -> None:
        self.calls: list[tuple[Exchange, Callable[[object], None]]] = []

    def call(self, make: Callable[[int], Exchange], on_reply: Callable[[object], None]) -> None:
        self.calls.append((make(7), on_reply))


class FakeLinks:
    """Links by address, each created when it is first needed."""

    def __init__(self) -> None:
        self.by_address: dict[Address, FakeLink] = {}

    def at(self, address: Address) -> FakeLink:
        return self.by_address.setdefault(address, FakeLink())
