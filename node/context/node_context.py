"""Values that all parts of one node share: settings, clock, rules, counters and transport."""

from collections.abc import Callable
from random import Random

from msgspec import Struct

from hashring import NodeId
from node.config.settings import NodeSettings
from node.context.containment import Containment
from node.membership.clock import ClusterTime
from node.metrics.counters import Counters
from node.requests.rules_in_force import RulesInForce
from ringfence import runtime
from ringfence.limiter import NS_PER_SECOND
from ringfence.transport.interface import Transport

__all__ = ["NodeContext", "RunningNode"]


class RunningNode:
    """Transport and tasks of a node; they are set when the node starts to run."""

    def __init__(self, stopwatch: Callable[[], int] | None = None) -> None:
        self.stopwatch = stopwatch
        """Measures the processor time of steps in ns; None in a simulation."""
        self.transport: Transport | None = None
        self.nursery: runtime.TaskGroup | None = None
        self._began = 0.0
        self._work_done = runtime.Event()

    def start(self, transport: Transport) -> None:
        """Set the transport of the node, and measure its uptime from now on."""
        self.transport = transport
        self._began = transport.now()

    def uptime(self) -> int:
        """Return the time since the start in ns, which the timers of membership use."""
        if self.transport is None:
            return 0
        return round((self.transport.now() - self._began) * NS_PER_SECOND)

    def held_up_ns(self) -> int:
        """Return the time in ns for which the datagram that is being processed waited in the
        socket."""
        return 0 if self.transport is None else self.transport.held_up_ns

    def flush(self) -> None:
        """Send all buffered messages."""
        if self.transport is not None:
            self.transport.flush()

    def call_later(self, seconds: float, call: Callable[[], None]) -> object:
        """Schedule a function call after a delay; return the timer."""
        assert self.transport is not None
        return self.transport.call_at(self.transport.now() + seconds, call)

    def on_work_done(self) -> None:
        """Wake the task that waits for the end of a request or connection."""
        self._work_done.set()

    async def wait_work_done(self) -> None:
        """Wait until a request or connection ends."""
        self._work_done = runtime.Event()
        await self._work_done.wait()


class NodeContext(Struct, frozen=True):
    """Values that all parts of one node share."""

    settings: NodeSettings
    name: NodeId
    clock: ClusterTime
    random: Random
    rules: RulesInForce
    containment: Containment
    counters: Counters
    running: RunningNode
